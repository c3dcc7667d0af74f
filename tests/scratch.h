/*
 * scratch.h - a temporary folder for tests, and files in it.
 */
#ifndef PI_TEST_SCRATCH_H
#define PI_TEST_SCRATCH_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A new empty folder; end with scratch_close(). */
static inline char *scratch_open(void)
{
    const char *base = getenv("TMPDIR");
    char *dir = calloc(1, 4096);

    if (dir == NULL)
        abort();
    (void)snprintf(dir, 4096, "%s/pi-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(dir) == NULL) {
        perror(dir);
        exit(99);
    }
    return dir;
}

static inline char *scratch_path(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *p = calloc(1, n);

    if (p == NULL)
        abort();
    (void)snprintf(p, n, "%s/%s", dir, name);
    return p;
}

/* Replaces a file's content. */
static inline void scratch_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(data, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        exit(99);
    }
}

/* Number of entries, hidden ones too. */
static inline int scratch_count(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;

    for (struct dirent *x; d != NULL && (x = readdir(d)) != NULL;)
        n += strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0;
    if (d != NULL)
        (void)closedir(d);
    return n;
}

/* Removes the folder with the files in it. */
static inline void scratch_close(char *dir)
{
    DIR *d = opendir(dir);

    for (struct dirent *x; d != NULL && (x = readdir(d)) != NULL;) {
        char *p;

        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0)
            continue;
        p = scratch_path(dir, x->d_name);
        (void)unlink(p);
        free(p);
    }
    if (d != NULL)
        (void)closedir(d);
    (void)rmdir(dir);
    free(dir);
}

#endif
