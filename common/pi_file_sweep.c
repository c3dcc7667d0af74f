#include "config.h"

#include "common/pi_file_int.h"

#include "common/pi_alloc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_BASE 200 /* names are limited to 255 bytes: the front of a long one is kept */

char *pi_out_tmp_name(const char *base, struct pi_err *err)
{
    static atomic_uint n_names;
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return pi_asprintf(err, ".%.*s.%lx-%lx-%x.tmp", MAX_BASE, base, (unsigned long)getpid(),
                       (unsigned long)t.tv_nsec, atomic_fetch_add(&n_names, 1));
}

/* Does name have the form above, for this base? */
static bool is_tmp_name(const char *name, const char *base)
{
    static const char *const ends[] = {"-", "-", ".tmp"};
    const size_t n = strnlen(base, MAX_BASE);

    if (name[0] != '.' || strncmp(name + 1, base, n) != 0 || name[1 + n] != '.')
        return false;
    name += n + 2;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const size_t digits = strspn(name, "0123456789abcdef");

        if (digits == 0 || strncmp(name + digits, ends[i], strlen(ends[i])) != 0)
            return false;
        name += digits + strlen(ends[i]);
    }
    return *name == '\0';
}

bool pi_out_lock(int fd, bool has_name)
{
    struct stat st;

    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return errno != EWOULDBLOCK;
    return !has_name || (fstat(fd, &st) == 0 && st.st_nlink > 0);
}

static void sweep_one(int dir_fd, const char *name)
{
    /* some network file systems lock only what is open for writing */
    const int fd = openat(dir_fd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat held, named;

    if (fd < 0)
        return;
    /* Between the folder's list and the lock it may have become an output, or another's. */
    if (fstat(fd, &held) == 0 && S_ISREG(held.st_mode) && held.st_uid == geteuid() &&
        flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        fstatat(dir_fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_dev == held.st_dev &&
        named.st_ino == held.st_ino)
        (void)unlinkat(dir_fd, name, 0);
    (void)close(fd);
}

void pi_out_sweep(int dir_fd, const char *base)
{
    const int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *x;

    if (d == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    while ((x = readdir(d)) != NULL)
        if (is_tmp_name(x->d_name, base))
            sweep_one(dir_fd, x->d_name);
    (void)closedir(d);
}
