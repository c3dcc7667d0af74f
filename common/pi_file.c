#include "config.h"

#include "common/pi_file.h"

#include "common/pi_alloc.h"
#include "common/pi_file_int.h"
#include "common/pi_progress.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define OUT_BUFFER   ((size_t)1 << 18)
#define READ_CHUNK   ((size_t)1 << 16)
#define GZIP_MAGIC_0 0x1f
#define GZIP_MAGIC_1 0x8b

/* ---- input ---------------------------------------------------------------------------------- */

/* Opens a file for reading; regular_only: without ever waiting for the other end of a FIFO. */
static enum pi_code open_input(const char *path, bool regular_only, int *fd_out, struct stat *st,
                               struct pi_err *err)
{
    enum pi_code rc;
    int fd;

    do { /* a FIFO lets us wait, and a signal may ask to stop meanwhile */
        rc = pi_interrupt_check(err);
        if (rc != PI_OK)
            return rc;
        fd = open(path, O_RDONLY | O_CLOEXEC | (regular_only ? O_NONBLOCK : 0));
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return pi_err_set(err, PI_E_IO, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, st) != 0) {
        int e = errno;

        (void)close(fd);
        return pi_err_set(err, PI_E_IO, "cannot open %s: %s", path, strerror(e));
    }
    if (S_ISDIR(st->st_mode) || (regular_only && !S_ISREG(st->st_mode))) {
        const char *what = S_ISDIR(st->st_mode) ? "a folder" : "no regular file";

        (void)close(fd);
        return pi_err_set(err, PI_E_IO, "cannot open %s: it is %s", path, what);
    }
    *fd_out = fd;
    return PI_OK;
}

enum pi_code pi_map_open(const char *path, struct pi_map *map_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_map m = {0};
    struct stat st;
    int fd = -1;

    PI_TRY(open_input(path, true, &fd, &st, err));
    m.path = pi_strndup(path, strlen(path), err);
    if (m.path == NULL) {
        rc = PI_E_NOMEM;
        goto out;
    }
    m.size = (size_t)st.st_size;
    if (m.size > 0) {
        void *p = mmap(NULL, m.size, PROT_READ, MAP_SHARED, fd, 0);

        if (p == MAP_FAILED)
            PI_FAIL(err, PI_E_IO, "cannot map %s (%zu bytes): %s", path, m.size, strerror(errno));
        m.data = p;
        /* file systems that keep files in large pieces then read and map 2 MiB at a time */
        pi_advise_huge(p, m.size);
    }
    *map_out = m;
    m.path = NULL;
out:
    if (fd >= 0)
        (void)close(fd);
    free(m.path);
    return rc;
}

enum pi_code pi_map_memory(const void *data, size_t size, const char *name, struct pi_map *map_out,
                           struct pi_err *err)
{
    struct pi_map m = {.data = data, .size = size, .borrowed = true};

    m.path = pi_strndup(name, strlen(name), err);
    if (m.path == NULL)
        return PI_E_NOMEM;
    *map_out = m;
    return PI_OK;
}

void pi_map_drop(const struct pi_map *map, const void *p, size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), base = (uintptr_t)map->data;
    uintptr_t begin = (uintptr_t)p, end = begin + n;

    if (map->borrowed || map->copied || map->data == NULL || begin < base ||
        end > base + map->size || end < begin)
        return;
    begin = begin / page * page; /* shared pages at either end: they come back */
    end = (end + page - 1) / page * page;
    (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

void pi_map_close(struct pi_map *map)
{
    if (map->data != NULL && !map->borrowed) {
        void *p;

        memcpy(&p, &map->data, sizeof(p)); /* munmap() takes it without the const */
        (void)munmap(p, map->size);
    }
    free(map->path);
    memset(map, 0, sizeof(*map));
}

/* A growing byte buffer that never holds more than max bytes. */
struct text {
    char *p;
    size_t n, cap, max;
    const char *path;
};

static enum pi_code text_append(struct text *t, const void *data, size_t n, struct pi_err *err)
{
    enum pi_code rc;

    if (n > t->max - t->n)
        return pi_err_set(err, PI_E_RANGE, "%s: more than the %zu bytes allowed", t->path, t->max);
    rc = pi_grow_array(&t->p, &t->cap, t->n + n + 1, 1, err);
    if (rc != PI_OK)
        return rc;
    memcpy(t->p + t->n, data, n);
    t->n += n;
    t->p[t->n] = '\0';
    return PI_OK;
}

static enum pi_code read_fd(int fd, struct text *t, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *chunk = NULL;

    PI_ALLOC(chunk, READ_CHUNK, err);
    for (;;) {
        ssize_t got;

        PI_TRY(pi_interrupt_check(err));
        got = read(fd, chunk, READ_CHUNK);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            PI_FAIL(err, PI_E_IO, "cannot read %s: %s", t->path, strerror(errno));
        if (got == 0)
            break;
        PI_TRY(text_append(t, chunk, (size_t)got, err));
    }
    PI_TRY(text_append(t, "", 0, err)); /* an empty file is an empty string, not NULL */
out:
    free(chunk);
    return rc;
}

/* Unpacks all members of the gzip stream in, into out. */
static enum pi_code gunzip(const struct text *in, struct text *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    unsigned char *chunk = NULL;
    z_stream z = {0};
    size_t at = 0;
    int zrc = Z_OK;

    if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK)
        return pi_err_set(err, PI_E_NOMEM, "cannot unpack %s: not enough memory", in->path);
    PI_ALLOC(chunk, READ_CHUNK, err);
    while (at < in->n || z.avail_in > 0) {
        PI_TRY(pi_interrupt_check(err));
        if (z.avail_in == 0) {
            z.avail_in = (uInt)(in->n - at < READ_CHUNK ? in->n - at : READ_CHUNK);
            z.next_in = (Bytef *)(in->p + at);
            at += z.avail_in;
        }
        z.next_out = chunk;
        z.avail_out = (uInt)READ_CHUNK;
        zrc = inflate(&z, Z_NO_FLUSH);
        if (zrc != Z_OK && zrc != Z_STREAM_END && zrc != Z_BUF_ERROR)
            PI_FAIL(err, zrc == Z_MEM_ERROR ? PI_E_NOMEM : PI_E_CORRUPT,
                    "%s: damaged gzip stream near byte %zu: %s", in->path, at - z.avail_in,
                    z.msg != NULL ? z.msg : "bad data");
        PI_TRY(text_append(out, chunk, READ_CHUNK - z.avail_out, err));
        if (zrc == Z_STREAM_END && (z.avail_in > 0 || at < in->n) && inflateReset(&z) != Z_OK)
            PI_FAIL(err, PI_E_CORRUPT, "%s: damaged gzip stream", in->path);
    }
    /* The last chunk of output may have filled the buffer exactly. */
    while (zrc == Z_OK) {
        z.next_out = chunk;
        z.avail_out = (uInt)READ_CHUNK;
        zrc = inflate(&z, Z_NO_FLUSH);
        PI_TRY(text_append(out, chunk, READ_CHUNK - z.avail_out, err));
        if (z.avail_out == READ_CHUNK)
            break;
    }
    if (zrc != Z_STREAM_END)
        PI_FAIL(err, PI_E_CORRUPT, "%s: the gzip stream ends after %zu bytes, before its end mark",
                in->path, in->n);
    PI_TRY(text_append(out, "", 0, err));
out:
    free(chunk);
    (void)inflateEnd(&z);
    return rc;
}

enum pi_code pi_file_read_all(const char *path, bool unpack, size_t max_bytes, char **text_out,
                              size_t *n_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    bool from_stdin = strcmp(path, "-") == 0;
    const char *name = from_stdin ? "standard input" : path;
    struct text raw = {.max = max_bytes, .path = name}, plain = {.max = max_bytes, .path = name};
    struct stat st;
    int fd = STDIN_FILENO;

    if (!from_stdin) {
        rc = open_input(path, false, &fd, &st, err);
        if (rc != PI_OK)
            return rc;
    }
    PI_TRY(read_fd(fd, &raw, err));
    if (unpack && raw.n >= 2 && (unsigned char)raw.p[0] == GZIP_MAGIC_0 &&
        (unsigned char)raw.p[1] == GZIP_MAGIC_1) {
        PI_TRY(gunzip(&raw, &plain, err));
        *text_out = plain.p;
        *n_out = plain.n;
        plain.p = NULL;
    } else {
        *text_out = raw.p;
        *n_out = raw.n;
        raw.p = NULL;
    }
out:
    if (!from_stdin)
        (void)close(fd);
    free(raw.p);
    free(plain.p);
    return rc;
}

/* ---- output --------------------------------------------------------------------------------- */

enum pi_code pi_out_error(const struct pi_out *o, const char *what, int e, struct pi_err *err)
{
    bool full = e == ENOSPC || e == EDQUOT || e == EFBIG;

    return pi_err_set(err, full ? PI_E_NOSPACE : PI_E_IO, "cannot %s %s: %s", what, o->path,
                      strerror(e));
}

enum pi_code pi_out_next_name(struct pi_out *o, struct pi_err *err)
{
    free(o->tmp);
    o->tmp = pi_out_tmp_name(o->base, err);
    return o->tmp != NULL ? PI_OK : PI_E_NOMEM;
}

/* The fallback for file systems without unnamed files. O_EXCL and not mkstemp(), so that the
 * umask decides about the mode as for any other file. */
static enum pi_code open_named(struct pi_out *o, struct pi_err *err)
{
    enum pi_code rc;
    int e = EEXIST;

    for (int i = 0; i < PI_OUT_NAME_TRIES && e == EEXIST; i++) {
        rc = pi_out_next_name(o, err);
        if (rc != PI_OK)
            return rc;
        o->fd = openat(o->dir_fd, o->tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd >= 0 && pi_out_lock(o->fd, true))
            return PI_OK;
        e = o->fd >= 0 ? EEXIST : errno;
        if (o->fd >= 0)
            (void)close(o->fd);
        o->fd = -1;
    }
    free(o->tmp);
    o->tmp = NULL;
    return pi_out_error(o, "create", e, err);
}

static bool fd_can_be_linked(int fd)
{
    char proc[64];

    (void)snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
    return access(proc, F_OK) == 0;
}

static enum pi_code open_unnamed_or_named(struct pi_out *o, struct pi_err *err)
{
#ifdef O_TMPFILE
    /* PI_TEST_NO_TMPFILE lets a test take the other branch. */
    if (getenv("PI_TEST_NO_TMPFILE") == NULL)
        o->fd = openat(o->dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (o->fd >= 0) {
        if (fd_can_be_linked(o->fd) && pi_out_lock(o->fd, false))
            return PI_OK;
        (void)close(o->fd);
        o->fd = -1;
    }
#endif
    return open_named(o, err);
}

static enum pi_code open_folder(struct pi_out *o, struct pi_err *err)
{
    char *slash = strrchr(o->path, '/');
    char *dir;

    o->base = slash != NULL ? slash + 1 : o->path;
    if (*o->base == '\0')
        return pi_out_error(o, "write", EISDIR, err);
    if (slash == NULL)
        dir = pi_strndup(".", 1, err);
    else
        dir = pi_strndup(o->path, slash == o->path ? 1 : (size_t)(slash - o->path), err);
    if (dir == NULL)
        return PI_E_NOMEM;
    o->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    return o->dir_fd >= 0 ? PI_OK : pi_out_error(o, "write", errno, err);
}

bool pi_is_lfs_pointer(const void *data, size_t n)
{
    static const char begin[] = "version https://git-lfs.github.com/spec/";

    return n >= sizeof(begin) - 1 && n <= 1024 && memcmp(data, begin, sizeof(begin) - 1) == 0;
}

bool pi_file_same(const char *a, const char *b)
{
    struct stat sa, sb;

    return a != NULL && b != NULL && stat(a, &sa) == 0 && stat(b, &sb) == 0 &&
           sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

enum pi_code pi_out_check_input(const char *out, const char *in, struct pi_err *err)
{
    if (!pi_file_same(out, in))
        return PI_OK;
    return pi_err_set(err, PI_E_USAGE, "%s is read as well: writing would replace it", out);
}

enum pi_code pi_out_open(const char *path, struct pi_out **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_out *o = NULL;
    struct stat st;

    PI_ALLOC(o, 1, err);
    o->fd = o->dir_fd = -1;
    PI_TRY(pi_out_target(path, &o->path, err));
    o->buf = pi_calloc_array(OUT_BUFFER, 1, err);
    if (o->buf == NULL) {
        rc = PI_E_NOMEM;
        goto out;
    }
    PI_TRY(open_folder(o, err));
    errno = 0;
    /* rename() would replace a device or a FIFO by a file: nobody wants that. */
    if (fstatat(o->dir_fd, o->base, &st, 0) == 0 && !S_ISREG(st.st_mode))
        PI_FAIL(err, PI_E_IO, "cannot write %s: it exists and is no regular file", path);
    if (errno == ENAMETOOLONG) { /* rename() would say so when all the work is done */
        rc = pi_out_error(o, "write", errno, err);
        goto out;
    }
    pi_out_sweep(o->dir_fd, o->base);
    PI_TRY(open_unnamed_or_named(o, err));
    *out = o;
    o = NULL;
out:
    pi_out_abort(o);
    return rc;
}

static enum pi_code write_at(const struct pi_out *o, uint64_t offset, const uint8_t *p, size_t n,
                             struct pi_err *err)
{
    while (n > 0) {
        ssize_t put = pwrite(o->fd, p, n, (off_t)offset);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return pi_out_error(o, "write", put < 0 ? errno : EIO, err);
        p += put;
        n -= (size_t)put;
        offset += (uint64_t)put;
    }
    return PI_OK;
}

enum pi_code pi_out_flush(struct pi_out *o, struct pi_err *err)
{
    enum pi_code rc = write_at(o, o->written, o->buf, o->n_buf, err);

    if (rc == PI_OK) {
        o->written += o->n_buf;
        o->n_buf = 0;
    }
    return rc;
}

enum pi_code pi_out_write(struct pi_out *o, const void *data, size_t n, struct pi_err *err)
{
    enum pi_code rc;

    if (n > OUT_BUFFER - o->n_buf) {
        rc = pi_out_flush(o, err);
        if (rc != PI_OK)
            return rc;
        if (n >= OUT_BUFFER) {
            rc = write_at(o, o->written, data, n, err);
            if (rc == PI_OK)
                o->written += n;
            return rc;
        }
    }
    if (n > 0)
        memcpy(o->buf + o->n_buf, data, n);
    o->n_buf += n;
    return PI_OK;
}

enum pi_code pi_out_patch(struct pi_out *o, uint64_t offset, const void *data, size_t n,
                          struct pi_err *err)
{
    enum pi_code rc = pi_out_flush(o, err);

    if (rc != PI_OK)
        return rc;
    if (offset > o->written || n > o->written - offset)
        return pi_err_set(err, PI_E_RANGE, "%s: patch of %zu bytes at %llu is past the end (%llu)",
                          o->path, n, (unsigned long long)offset, (unsigned long long)o->written);
    return write_at(o, offset, data, n, err);
}

enum pi_code pi_out_extend(struct pi_out *o, uint64_t size, struct pi_err *err)
{
    enum pi_code rc = pi_out_flush(o, err);

    if (rc != PI_OK)
        return rc;
    if (size < o->written || size > INT64_MAX)
        return pi_err_set(err, PI_E_RANGE, "%s: cannot have %llu bytes, %llu are written", o->path,
                          (unsigned long long)size, (unsigned long long)o->written);
    if (ftruncate(o->fd, (off_t)size) != 0)
        return pi_out_error(o, "write", errno, err);
    o->written = size;
    return PI_OK;
}

enum pi_code pi_out_put(const struct pi_out *o, uint64_t offset, const void *data, size_t n,
                        struct pi_err *err)
{
    if (offset > o->written || n > o->written - offset)
        return pi_err_set(err, PI_E_RANGE, "%s: %zu bytes at %llu are past the end (%llu)", o->path,
                          n, (unsigned long long)offset, (unsigned long long)o->written);
    return write_at(o, offset, data, n, err);
}

uint64_t pi_out_size(const struct pi_out *o)
{
    return o->written + o->n_buf;
}

enum pi_code pi_out_peek(struct pi_out *o, char **path_out, struct pi_err *err)
{
    enum pi_code rc = pi_out_flush(o, err);
    char *path;

    if (rc != PI_OK)
        return rc;
    if (o->tmp == NULL || fd_can_be_linked(o->fd))
        path = pi_asprintf(err, "/proc/self/fd/%d", o->fd);
    else
        path = pi_asprintf(err, "%.*s%s", (int)(o->base - o->path), o->path, o->tmp);
    if (path == NULL)
        return PI_E_NOMEM;
    *path_out = path;
    return PI_OK;
}

void pi_out_abort(struct pi_out *o)
{
    if (o == NULL)
        return;
    if (o->tmp != NULL)
        (void)unlinkat(o->dir_fd, o->tmp, 0);
    if (o->old != NULL)
        (void)unlinkat(o->dir_fd, o->old, 0);
    if (o->fd >= 0)
        (void)close(o->fd);
    if (o->dir_fd >= 0)
        (void)close(o->dir_fd);
    free(o->tmp);
    free(o->old);
    free(o->buf);
    free(o->path);
    free(o);
}

char *pi_path_artifact(const char *model_path, const char *kind, struct pi_err *err)
{
    static const char suffix[] = ".gguf";
    size_t n = strlen(model_path), m = sizeof(suffix) - 1;
    size_t stem = n > m && strcmp(model_path + n - m, suffix) == 0 ? n - m : n;

    return pi_asprintf(err, "%.*s.%s.gguf", (int)stem, model_path, kind);
}

char *pi_path_or_artifact(const char *given, const char *model_path, const char *kind,
                          struct pi_err *err)
{
    return given != NULL ? pi_strndup(given, strlen(given), err)
                         : pi_path_artifact(model_path, kind, err);
}

enum pi_code pi_path_find_artifact(const char *given, const char *model_path, const char *kind,
                                   char **path_out, struct pi_err *err)
{
    char *path = pi_path_or_artifact(given, model_path, kind, err);

    if (path == NULL)
        return PI_E_NOMEM;
    if (given == NULL && access(path, F_OK) != 0) {
        free(path);
        path = NULL;
    }
    *path_out = path;
    return PI_OK;
}

enum pi_code pi_out_probe(const char *path, struct pi_err *err)
{
    struct pi_out *o = NULL;
    enum pi_code rc = pi_out_open(path, &o, err);

    if (rc == PI_OK)
        pi_out_abort(o);
    return rc;
}
