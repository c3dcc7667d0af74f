#include "config.h"

#include "convert/pi_argument.h"

#include "convert/pi_json.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);

    return n > m && strcmp(name + n - m, end) == 0;
}

static enum pi_code check_folder(const char *path, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    DIR *d = pi_json_exists(path, "config.json") ? NULL : opendir(path);
    const struct dirent *x;

    /* what else is wrong with it, its readers tell */
    while (rc == PI_OK && d != NULL && (x = readdir(d)) != NULL) {
        if (ends_in(x->d_name, ".gguf"))
            rc = pi_err_set(
                err, PI_E_USAGE,
                "%s: no config.json in it, so no Hugging Face folder; give the GGUF file itself: %s/%s",
                path, path, x->d_name);
    }
    if (d != NULL)
        (void)closedir(d);
    return rc;
}

enum pi_code pi_argument_check(const char *path, bool *is_folder, struct pi_err *err)
{
    static const char *const weights[] = {".safetensors", ".bin", ".pt", ".pth",
                                          ".safetensors.index.json", ".bin.index.json"};
    struct stat st;

    if (stat(path, &st) != 0)
        return pi_err_set(err, PI_E_IO, "%s: %s", path, strerror(errno));
    *is_folder = S_ISDIR(st.st_mode);
    if (*is_folder)
        return check_folder(path, err);
    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++)
        if (ends_in(path, weights[i]))
            return pi_err_set(
                err, PI_E_USAGE,
                "%s: weights alone; give the folder that they, config.json and the tokenizer lie in",
                path);
    return PI_OK;
}
