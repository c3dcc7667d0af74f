#include "config.h"

#include "runtime/pi_where.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODEL "demo.gguf"

/* The folder of the running program; "." where it cannot be told. */
static void own_folder(char dir[PATH_MAX])
{
    const ssize_t n = readlink("/proc/self/exe", dir, PATH_MAX - 1);
    char *slash;

    dir[n > 0 ? n : 0] = '\0';
    slash = strrchr(dir, '/');
    if (slash != NULL)
        *slash = '\0';
    else
        strcpy(dir, ".");
}

static bool is_there(char *path, size_t n, const char *dir, const char *below)
{
    const int len = snprintf(path, n, "%s%s/" MODEL, dir, below);

    return len > 0 && (size_t)len < n && access(path, R_OK) == 0;
}

enum pi_code pi_where_demo(char *path_out, size_t n, struct pi_err *err)
{
    char dir[PATH_MAX];

    own_folder(dir);
    if (is_there(path_out, n, dir, "/share/" PACKAGE) ||
        is_there(path_out, n, dir, "/../share/" PACKAGE) ||
        is_there(path_out, n, PI_PKGDATADIR, ""))
        return PI_OK;
    return pi_err_set(err, PI_E_IO,
                      "--demo: the demo model is not installed: no " MODEL
                      " in %s/../share/" PACKAGE " or " PI_PKGDATADIR "; give a model with -m",
                      dir);
}

void pi_where_program(const char *name, char *path_out, size_t n)
{
    char dir[PATH_MAX];
    int len;

    own_folder(dir);
    len = snprintf(path_out, n, "%s/%s", dir, name);
    if (len < 0 || (size_t)len >= n || access(path_out, X_OK) != 0)
        (void)snprintf(path_out, n, "%s", name);
}
