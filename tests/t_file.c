/* Maps, whole files, and outputs that appear complete or not at all. */
#include "config.h"

#include "common/pi_file.h"
#include "tests/scratch.h"
#include "tests/tap.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <zlib.h>

static struct pi_err e;

static void test_map(const char *dir)
{
    char *path = scratch_path(dir, "in");
    struct pi_map m = {0};

    scratch_write(path, "hello", 5);
    PASSES(pi_map_open(path, &m, &e), e);
    OK(m.size == 5 && memcmp(m.data, "hello", 5) == 0 && strcmp(m.path, path) == 0);
    pi_map_close(&m);
    OK(m.data == NULL && m.path == NULL);
    pi_map_close(&m);
    scratch_write(path, "", 0);
    PASSES(pi_map_open(path, &m, &e), e);
    OK(m.size == 0 && m.data == NULL);
    pi_map_close(&m);
    FAILS(pi_map_open(dir, &m, &e), PI_E_IO, "it is a folder", e);
    FAILS(pi_map_open("/nonexistent/x", &m, &e), PI_E_IO, "/nonexistent/x: No such file", e);
    FAILS(pi_map_open("/dev/null", &m, &e), PI_E_IO, "no regular file", e);
    (void)unlink(path);
    OK(mkfifo(path, 0600) == 0);
    FAILS(pi_map_open(path, &m, &e), PI_E_IO, "no regular file",
          e); /* and does not wait for a writer */
    (void)unlink(path);
    free(path);
}

static void gzip_to(const char *path, const void *data, size_t n, const char *mode)
{
    gzFile z = gzopen(path, mode);

    OK(z != NULL && gzwrite(z, data, (unsigned)n) == (int)n && gzclose(z) == Z_OK);
}

static void test_read_all(const char *dir)
{
    enum {
        BIG = 300000
    };
    char *path = scratch_path(dir, "in"), *p = NULL, *big = calloc(BIG, 1);
    size_t n = 0;

    scratch_write(path, "a\0b", 3);
    PASSES(pi_file_read_all(path, true, 100, &p, &n, &e), e);
    OK(n == 3 && memcmp(p, "a\0b", 4) == 0);
    free(p);
    scratch_write(path, "", 0);
    PASSES(pi_file_read_all(path, true, 0, &p, &n, &e), e);
    OK(n == 0 && p[0] == '\0');
    free(p);
    scratch_write(path, "12345", 5);
    FAILS(pi_file_read_all(path, true, 4, &p, &n, &e), PI_E_RANGE, "more than the 4 bytes", e);
    PASSES(pi_file_read_all(path, true, 5, &p, &n, &e), e);
    free(p);
    FAILS(pi_file_read_all(dir, true, 4, &p, &n, &e), PI_E_IO, "it is a folder", e);

    for (int i = 0; i < BIG; i++)
        big[i] = (char)((unsigned)i * (unsigned)i >> 5);
    gzip_to(path, big, BIG, "wb");
    PASSES(pi_file_read_all(path, true, BIG, &p, &n, &e), e);
    OK(n == BIG && memcmp(p, big, BIG) == 0);
    free(p);
    FAILS(pi_file_read_all(path, true, BIG - 1, &p, &n, &e), PI_E_RANGE, "more than", e);
    PASSES(pi_file_read_all(path, false, BIG, &p, &n, &e), e);
    OK(n > 10 && (unsigned char)p[0] == 0x1f);
    p[n / 2] ^= 16;
    scratch_write(path, p, n);
    free(p);
    FAILS(pi_file_read_all(path, true, BIG, &p, &n, &e), PI_E_CORRUPT, "damaged gzip stream", e);
    gzip_to(path, big, 1000, "wb");
    gzip_to(path, big + 1000, 500, "ab"); /* two members, one after the other */
    PASSES(pi_file_read_all(path, true, BIG, &p, &n, &e), e);
    OK(n == 1500 && memcmp(p, big, 1500) == 0);
    free(p);
    PASSES(pi_file_read_all(path, false, BIG, &p, &n, &e), e);
    scratch_write(path, p, n - 3);
    free(p);
    FAILS(pi_file_read_all(path, true, BIG, &p, &n, &e), PI_E_CORRUPT, "before its end mark", e);
    (void)unlink(path);
    free(big);
    free(path);
}

static void expect_text(const char *path, const char *text)
{
    char *p = NULL;
    size_t n = 0;

    PASSES(pi_file_read_all(path, false, 1 << 20, &p, &n, &e), e);
    STREQ(p != NULL ? p : "", text);
    free(p);
}

static void test_out(const char *dir)
{
    char *path = scratch_path(dir, "out");
    struct pi_out *o = NULL;
    struct stat st;
    mode_t mask = umask(027);

    PASSES(pi_out_open(path, &o, &e), e);
    PASSES(pi_out_write(o, "hello ", 6, &e), e);
    PASSES(pi_out_write(o, "world", 5, &e), e);
    EQ(pi_out_size(o), 11);
    OK(access(path, F_OK) != 0);
    PASSES(pi_out_patch(o, 6, "W", 1, &e), e);
    PASSES(pi_out_write(o, "!", 1, &e), e);
    FAILS(pi_out_patch(o, 11, "xx", 2, &e), PI_E_RANGE, "past the end", e);
    FAILS(pi_out_patch(o, UINT64_MAX, "xx", 2, &e), PI_E_RANGE, "past the end", e);
    PASSES(pi_out_commit(o, &e), e);
    expect_text(path, "hello World!");
    OK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0640);
    EQ(scratch_count(dir), 1);
    (void)umask(mask);

    PASSES(pi_out_open(path, &o, &e), e);
    PASSES(pi_out_write(o, "half", 4, &e), e);
    pi_out_abort(o);
    expect_text(path, "hello World!");
    PASSES(pi_out_open(path, &o, &e), e);
    PASSES(pi_out_write(o, "new", 3, &e), e);
    PASSES(pi_out_commit(o, &e), e);
    expect_text(path, "new");
    EQ(scratch_count(dir), 1);

    /* A bare name lies in the working folder. */
    char *cwd = getcwd(NULL, 0);
    OK(cwd != NULL && chdir(dir) == 0);
    PASSES(pi_out_open("bare", &o, &e), e);
    PASSES(pi_out_commit(o, &e), e);
    OK(access("bare", F_OK) == 0 && unlink("bare") == 0 && chdir(cwd) == 0);
    free(cwd);

    FAILS(pi_out_open("/nonexistent/x", &o, &e), PI_E_IO, "cannot write /nonexistent/x", e);
    FAILS(pi_out_open(dir, &o, &e), PI_E_IO, "is no regular file", e);
    FAILS(pi_out_open("/dev/null", &o, &e), PI_E_IO, "is no regular file", e);
    FAILS(pi_out_open("/tmp/", &o, &e), PI_E_IO, "cannot write /tmp/", e);
    (void)unlink(path);
    free(path);
}

/* More than the buffer at once and in odd pieces. */
static void test_big_out(const char *dir)
{
    enum {
        N = 700001
    };
    char *path = scratch_path(dir, "out"), *data = malloc(N), *p = NULL;
    struct pi_out *o = NULL;
    size_t n = 0, at = 0;
    int bad = 0;

    for (size_t i = 0; i < N; i++)
        data[i] = (char)(i ^ i >> 9);
    PASSES(pi_out_open(path, &o, &e), e);
    for (size_t part = 1; at < N; at += part, part = part * 3 + 1)
        bad += pi_out_write(o, data + at, part < N - at ? part : N - at, &e) != PI_OK;
    EQ(bad, 0);
    PASSES(pi_out_commit(o, &e), e);
    PASSES(pi_file_read_all(path, false, N, &p, &n, &e), e);
    OK(n == N && memcmp(p, data, N) == 0);
    free(p);
    free(data);
    (void)unlink(path);
    free(path);
}

/* A process that dies while it writes leaves neither the target nor anything else behind. */
static void test_killed(const char *dir)
{
    char *path = scratch_path(dir, "out"), *other = scratch_path(dir, ".out.1-2.tmp"),
         *other_out = scratch_path(dir, "ou");
    int fds[2], status = 0, n;
    char c;
    pid_t child;

    scratch_write(path, "old", 3);
    OK(pipe(fds) == 0);
    (void)fflush(stdout);
    child = fork();
    if (child == 0) {
        struct pi_out *o = NULL;
        static char block[1 << 20];

        if (pi_out_open(path, &o, NULL) != PI_OK ||
            pi_out_write(o, block, sizeof(block), NULL) != PI_OK || write(fds[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    OK(read(fds[0], &c, 1) == 1);
    /* What a living program has is not swept away by another, nor are names that only look like it. */
    n = scratch_count(dir);
    scratch_write(other, "x", 1);
    PASSES(pi_out_probe(path, &e), e);
    EQ(scratch_count(dir), n + 1);
    (void)unlink(other);
    OK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    expect_text(path, "old");
    /* The fallback for file systems without unnamed files cannot do better than a hidden name, which the next output sweeps away. */
    EQ(scratch_count(dir), n);
    PASSES(pi_out_probe(other_out, &e), e);
    EQ(scratch_count(dir), n);
    PASSES(pi_out_probe(path, &e), e);
    EQ(scratch_count(dir), 1);
    free(other);
    free(other_out);
    (void)close(fds[0]);
    (void)close(fds[1]);
    (void)unlink(path);
    free(path);
}

/* A file size limit stands in for a full disk. */
static void test_full(const char *dir)
{
    char *path = scratch_path(dir, "out");
    struct rlimit old, small = {1 << 16, 1 << 16};
    static char block[1 << 20];
    struct pi_out *o = NULL;

    (void)getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    PASSES(pi_out_open(path, &o, &e), e);
    OK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    enum pi_code rc = pi_out_write(o, block, sizeof(block), &e);
    (void)setrlimit(RLIMIT_FSIZE, &old);
    FAILS(rc, PI_E_NOSPACE, "cannot write", e);
    pi_out_abort(o);
    EQ(scratch_count(dir), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
    free(path);
}

static void put_text(struct pi_out **o, const char *path, const char *text, size_t n)
{
    PASSES(pi_out_open(path, o, &e), e);
    PASSES(pi_out_write(*o, text, n, &e), e);
}

/* Three outputs: the first replaces one, the others are new, and one cannot appear. */
static void test_together(const char *dir)
{
    static const char *const names[] = {"a", "b", "c"};
    static char block[100000]; /* waits in the buffer until the commit */
    char *path[3];
    struct rlimit old, small = {1 << 16, 1 << 16};
    struct pi_out *o[3];

    for (int i = 0; i < 3; i++)
        path[i] = scratch_path(dir, names[i]);
    for (int bad = 0; bad < 3; bad++) {
        scratch_write(path[0], "old", 3);
        for (int i = 0; i < 3; i++)
            put_text(&o[i], path[i], "new", 3);
        (void)unlink(path[bad]);
        OK(mkdir(path[bad], 0700) == 0);
        FAILS(pi_out_commit_all(o, 3, &e), PI_E_IO, "cannot rename to ", e);
        OK(strstr(e.msg, path[bad]) != NULL);
        if (bad > 0)
            expect_text(path[0], "old");
        EQ(scratch_count(dir), bad > 0 ? 2 : 1);
        OK(rmdir(path[bad]) == 0);
    }
    (void)getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    scratch_write(path[0], "old", 3);
    for (int i = 0; i < 3; i++)
        put_text(&o[i], path[i], block, i == 1 ? sizeof(block) : 3);
    OK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    FAILS(pi_out_commit_all(o, 3, &e), PI_E_NOSPACE, "cannot write", e);
    (void)setrlimit(RLIMIT_FSIZE, &old);
    (void)signal(SIGXFSZ, SIG_DFL);
    expect_text(path[0], "old");
    EQ(scratch_count(dir), 1);
    for (int i = 0; i < 3; i++)
        put_text(&o[i], path[i], names[i], 1);
    PASSES(pi_out_commit_all(o, 3, &e), e);
    for (int i = 0; i < 3; i++) {
        expect_text(path[i], names[i]);
        (void)unlink(path[i]);
        free(path[i]);
    }
    EQ(scratch_count(dir), 0);
}

static void test_room(const char *dir)
{
    char *path = scratch_path(dir, "out");
    struct rlimit old, small = {1 << 16, 1 << 16};
    uint64_t room = 0;

    PASSES(pi_out_room(path, &room, &e), e);
    OK(room > 0);
    PASSES(pi_out_check_room(path, 1, &e), e);
    if (room < UINT64_MAX)
        FAILS(pi_out_check_room(path, room / 2 + UINT64_MAX / 2, &e), PI_E_NOSPACE,
              "there is room for", e);
    PASSES(pi_out_room("relative", &room, &e), e);
    FAILS(pi_out_room("/nonexistent/x/y", &room, &e), PI_E_IO, "/nonexistent/x/y", e);
    OK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    small.rlim_max = old.rlim_max;
    OK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    PASSES(pi_out_room(path, &room, &e), e);
    OK(room <= 1 << 16);
    FAILS(pi_out_check_room(path, (1 << 16) + 1, &e), PI_E_NOSPACE, "it takes 65537 bytes", e);
    OK(setrlimit(RLIMIT_FSIZE, &old) == 0);
    free(path);
}

static void test_names(void)
{
    char *p = pi_path_artifact("a/M.gguf", "profile", &e);

    STREQ(p, "a/M.profile.gguf");
    free(p);
    p = pi_path_artifact("model", "placement", &e);
    STREQ(p, "model.placement.gguf");
    free(p);
    p = pi_path_artifact(".gguf", "x", &e);
    STREQ(p, ".gguf.x.gguf");
    free(p);
}

int main(void)
{
    char *dir = scratch_open();

    test_map(dir);
    test_read_all(dir);
    test_names();
    for (int named = 0; named < 2; named++) {
        if (named)
            (void)setenv("PI_TEST_NO_TMPFILE", "1", 1);
        test_out(dir);
        test_big_out(dir);
        test_full(dir);
        test_together(dir);
        test_room(dir);
        test_killed(dir);
    }
    scratch_close(dir);
    return DONE();
}
