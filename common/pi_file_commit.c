/* Output files appear: one, or several together or none of them. */
#include "config.h"

#include "common/pi_file.h"
#include "common/pi_file_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Gives an unnamed file its hidden name. */
static enum pi_code link_tmp(struct pi_out *o, struct pi_err *err)
{
    enum pi_code rc;
    char proc[64];
    int e = EEXIST;

    (void)snprintf(proc, sizeof(proc), "/proc/self/fd/%d", o->fd);
    for (int i = 0; i < PI_OUT_NAME_TRIES && e == EEXIST; i++) {
        rc = pi_out_next_name(o, err);
        if (rc != PI_OK)
            return rc;
        if (linkat(AT_FDCWD, proc, o->dir_fd, o->tmp, AT_SYMLINK_FOLLOW) == 0)
            return PI_OK;
        e = errno;
    }
    free(o->tmp);
    o->tmp = NULL;
    return pi_out_error(o, "name", e, err);
}

/* A second name for what stands under the target's. Some file systems have none: then it cannot be brought back. */
static enum pi_code keep_old(struct pi_out *o, struct pi_err *err)
{
    struct stat st;
    int e;

    o->replaces = fstatat(o->dir_fd, o->base, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!o->replaces)
        return PI_OK;
    o->old = pi_out_tmp_name(o->base, err);
    if (o->old == NULL)
        return PI_E_NOMEM;
    if (linkat(o->dir_fd, o->base, o->dir_fd, o->old, 0) == 0)
        return PI_OK;
    e = errno;
    free(o->old);
    o->old = NULL;
    return e == ENOSPC || e == EDQUOT ? pi_out_error(o, "keep the older", e, err) : PI_OK;
}

/* All that takes room or time. */
static enum pi_code make_ready(struct pi_out *o, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_out_flush(o, err));
    /* The data must be on the disk before the name is: a crash may not leave an empty target. */
    if (fsync(o->fd) != 0)
        PI_TRY(pi_out_error(o, "sync", errno, err));
    if (o->tmp == NULL)
        PI_TRY(link_tmp(o, err));
out:
    return rc;
}

static enum pi_code appear(struct pi_out *o, struct pi_err *err)
{
    if (renameat(o->dir_fd, o->tmp, o->dir_fd, o->base) != 0)
        return pi_out_error(o, "rename to", errno, err);
    free(o->tmp);
    o->tmp = NULL;
    return PI_OK;
}

static void withdraw(struct pi_out *o)
{
    if (o->old != NULL && renameat(o->dir_fd, o->old, o->dir_fd, o->base) == 0) {
        free(o->old);
        o->old = NULL;
    } else if (!o->replaces) {
        (void)unlinkat(o->dir_fd, o->base, 0);
    }
}

/* The file is in place by now; some file systems cannot sync a folder, which is no failure. */
static enum pi_code sync_folder(const struct pi_out *o, struct pi_err *err)
{
    if (fsync(o->dir_fd) == 0 || errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)
        return PI_OK;
    return pi_out_error(o, "sync the folder of", errno, err);
}

enum pi_code pi_out_commit_all(struct pi_out *const *o, size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    size_t done = 0;

    for (size_t i = 0; i < n; i++) {
        PI_TRY(make_ready(o[i], err));
        if (i + 1 < n) /* behind the last nothing fails */
            PI_TRY(keep_old(o[i], err));
    }
    for (; done < n; done++)
        PI_TRY(appear(o[done], err));
    for (size_t i = 0; i < n && rc == PI_OK; i++)
        rc = sync_folder(o[i], err);
    done = 0; /* they stay */
out:
    while (done > 0)
        withdraw(o[--done]);
    for (size_t i = 0; i < n; i++)
        pi_out_abort(o[i]);
    return rc;
}

enum pi_code pi_out_commit(struct pi_out *o, struct pi_err *err)
{
    return pi_out_commit_all(&o, 1, err);
}
