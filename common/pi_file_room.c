/* Is there room for a file of known size? Asked before hours of work, not after. */
#include "config.h"

#include "common/pi_file.h"

#include "common/pi_alloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

enum pi_code pi_out_target(const char *path, char **target_out, struct pi_err *err)
{
    struct stat st;
    char *real;

    if (lstat(path, &st) != 0 || !S_ISLNK(st.st_mode)) {
        *target_out = pi_strndup(path, strlen(path), err);
        return *target_out != NULL ? PI_OK : PI_E_NOMEM;
    }
    real = realpath(path, NULL);
    if (real == NULL)
        return pi_err_set(err, PI_E_IO, "cannot write %s: a symbolic link that leads nowhere: %s",
                          path, strerror(errno));
    *target_out = pi_strndup(real, strlen(real), err);
    free(real);
    return *target_out != NULL ? PI_OK : PI_E_NOMEM;
}

/* The folder of a path: "." where it has none. */
static char *folder_of(const char *path, struct pi_err *err)
{
    const char *slash = strrchr(path, '/');

    if (slash == NULL)
        return pi_strndup(".", 1, err);
    return pi_strndup(path, slash == path ? 1 : (size_t)(slash - path), err);
}

enum pi_code pi_out_room(const char *path, uint64_t *bytes_out, struct pi_err *err)
{
    uint64_t room = UINT64_MAX;
    struct statvfs fs;
    struct rlimit limit;
    char *target = NULL, *dir;
    enum pi_code rc = pi_out_target(path, &target, err);

    if (rc != PI_OK)
        return rc;
    dir = folder_of(target, err);
    free(target);
    if (dir == NULL)
        return PI_E_NOMEM;
    if (statvfs(dir, &fs) != 0) {
        int e = errno;

        free(dir);
        return pi_err_set(err, PI_E_IO, "cannot write %s: %s", path, strerror(e));
    }
    free(dir);
    /* Some network file systems say nothing: 0 blocks in all. */
    if (fs.f_blocks > 0 && fs.f_frsize > 0 && fs.f_bavail < UINT64_MAX / fs.f_frsize)
        room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < room)
        room = limit.rlim_cur;
    *bytes_out = room;
    return PI_OK;
}

enum pi_code pi_out_check_room(const char *path, uint64_t bytes, struct pi_err *err)
{
    uint64_t room = 0;
    enum pi_code rc = pi_out_room(path, &room, err);

    if (rc != PI_OK || bytes <= room)
        return rc;
    return pi_err_set(
        err, PI_E_NOSPACE,
        "cannot write %s: it takes %llu bytes (%.1f GB), there is room for %llu (%.1f GB)", path,
        (unsigned long long)bytes, (double)bytes / 1e9, (unsigned long long)room,
        (double)room / 1e9);
}
