#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_err.h"
#include "common/pi_size.h"
#include "common/pi_type.h"
#include "tests/tap.h"

static PI_MUST_CHECK enum pi_code bad_magic(float **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float *w = NULL;

    PI_ALLOC(w, 4, err);
    PI_FAIL(err, PI_E_CORRUPT, "bad magic %s", "\x1b[2J");
out:
    free(w);
    (void)out;
    return rc;
}

int main(void)
{
    struct pi_err e = {0};
    float *p = NULL;
    uint64_t n = 7;
    size_t cap = 0;
    int *grown = NULL;

    OK(bad_magic(&p, &e) == PI_E_CORRUPT);
    pi_err_wrap(&e, "%s", "m.bin");
    STREQ(e.msg, "m.bin: bad magic ?[2J");
    OK(p == NULL);
    STREQ(pi_code_text(PI_E_NODEV), "the device asked for is absent");
    EQ(pi_code_exit_status(PI_OK), 0);
    EQ(pi_code_exit_status(PI_E_USAGE), 2);
    EQ(pi_code_exit_status(PI_E_INTERRUPTED), 130);

    OK(!pi_size_mul(UINT64_MAX, 2, &n) && n == 7);
    OK(!pi_size_add(UINT64_MAX, 1, &n) && n == 7);
    OK(!pi_size_pad(UINT64_MAX, 32, &n) && n == 7);
    OK(pi_size_pad(33, 32, &n) && n == 64);
    OK(pi_calloc_array((size_t)1 << 62, 8, &e) == NULL && e.code == PI_E_NOMEM);
    OK(pi_grow_array(&grown, &cap, 5, sizeof(*grown), &e) == PI_OK && cap >= 5 && grown[4] == 0);
    free(grown);

    OK(pi_type_row_bytes(PI_TYPE_Q8_0, 64, &n) && n == 68);
    OK(!pi_type_row_bytes(PI_TYPE_Q8_0, 33, &n));
    OK(!pi_type_row_bytes(PI_TYPE_F64, UINT64_MAX / 4, &n));
    OK(pi_type_info(99) == NULL && pi_type_info(4) == NULL);
    return DONE();
}
