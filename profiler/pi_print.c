#include "config.h"

#include "profiler/pi_print.h"

#include <stdio.h>
#include <stdlib.h>

enum pi_code pi_print_json(json_t *o, struct pi_err *err)
{
    char *s = o != NULL ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

    json_decref(o);
    if (s == NULL)
        return pi_err_set(err, PI_E_NOMEM, "no memory for the result");
    (void)puts(s); /* pi_program_end() finds out whether it arrived */
    free(s);
    return PI_OK;
}

void pi_print_append(json_t **array, json_t *item)
{
    if (*array == NULL) {
        json_decref(item);
    } else if (json_array_append_new(*array, item) != 0) {
        json_decref(*array);
        *array = NULL;
    }
}
