/*
 * pi_file.h - read-only maps of whole files, and output files that appear complete or not at all.
 *
 * An output is written to an unnamed (or hidden temporary) file in the target's folder; commit
 * syncs it and renames it over the target. Whatever ends the program before that (an error, a
 * signal, a kill) leaves the old target untouched and no half file under its name. What a kill
 * left under a hidden name goes when the next output of that name is opened.
 */
#ifndef PI_FILE_H
#define PI_FILE_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pi_map {
    const uint8_t *data; /* (size), NULL when the file is empty */
    size_t size;         /* bytes */
    char *path;          /* owned copy, for messages */
    bool borrowed;       /* data is the caller's memory: close does not unmap it */
    bool copied;         /* data is a copy in memory, at the place where the file was mapped */
};

/* Maps a regular file read-only. PI_E_IO names path and cause (missing, a directory, unreadable). */
enum pi_code pi_map_open(const char *path, struct pi_map *map_out,
                         struct pi_err *err) PI_MUST_CHECK;

/* A map over memory that the caller keeps alive; name stands in messages. */
enum pi_code pi_map_memory(const void *data, size_t size, const char *name, struct pi_map *map_out,
                           struct pi_err *err) PI_MUST_CHECK;

/* The file's pages under n bytes from p on are not needed in memory for now: they no longer count as this process's, and what reads them again gets them from
 * the file. For who passes over more than memory should hold. Nothing happens for what does not lie in the map, for memory of the caller's and for copies. */
void pi_map_drop(const struct pi_map *map, const void *p, size_t n);

/* Accepts a zeroed map. Everything that points into it dies with it. */
void pi_map_close(struct pi_map *map);

/* The whole of a file, or of standard input for "-", as bytes with a NUL behind them; gzip files
 * are unpacked (zlib) when gunzip is true. *text_out is the caller's to free().
 * PI_E_IO; PI_E_NOMEM; PI_E_CORRUPT for a damaged gzip stream; PI_E_RANGE above max_bytes. */
enum pi_code pi_file_read_all(const char *path, bool gunzip, size_t max_bytes, char **text_out,
                              size_t *n_out, struct pi_err *err) PI_MUST_CHECK;

/* What a clone without Git LFS has in a large file's place, and what is said of it behind the path. */
bool pi_is_lfs_pointer(const void *data, size_t n);
#define PI_LFS_POINTER "is a Git LFS pointer, no data: fetch the real file (git lfs pull)"

/* Two paths of one file that is there: links and other spellings count. NULL is no file. */
bool pi_file_same(const char *a, const char *b);

/* PI_E_USAGE where writing out would replace the input in; either may be NULL. */
enum pi_code pi_out_check_input(const char *out, const char *in, struct pi_err *err) PI_MUST_CHECK;

/* Where a symbolic link at path leads, or path itself: outputs are written through links, as cp does. The caller's to free(). PI_E_IO for a link to
 * nothing or a circle, PI_E_NOMEM. */
enum pi_code pi_out_target(const char *path, char **target_out, struct pi_err *err) PI_MUST_CHECK;

struct pi_out; /* an output file under construction; owned by who opened it */

/* Finds out before hours of work whether an output could be opened: PI_E_IO, PI_E_NOSPACE. */
enum pi_code pi_out_probe(const char *path, struct pi_err *err) PI_MUST_CHECK;

/* Bytes that a new file at path may have: what its file system has free for this user, and what the limit on file sizes allows (ulimit -f).
 * UINT64_MAX where neither is known. An output replaces an older one only when it is complete, so both take room meanwhile.
 * PI_E_IO, PI_E_NOMEM. */
enum pi_code pi_out_room(const char *path, uint64_t *bytes_out, struct pi_err *err) PI_MUST_CHECK;
/* PI_E_NOSPACE where a file of that many bytes will not fit, with both figures. */
enum pi_code pi_out_check_room(const char *path, uint64_t bytes, struct pi_err *err) PI_MUST_CHECK;

enum pi_code pi_out_open(const char *path, struct pi_out **out, struct pi_err *err) PI_MUST_CHECK;

/* Appends n bytes. PI_E_NOSPACE on a full disk, PI_E_IO otherwise. */
enum pi_code pi_out_write(struct pi_out *o, const void *data, size_t n,
                          struct pi_err *err) PI_MUST_CHECK;

/* Overwrites n bytes at an offset already written. */
enum pi_code pi_out_patch(struct pi_out *o, uint64_t offset, const void *data, size_t n,
                          struct pi_err *err) PI_MUST_CHECK;

/* For several writers at once: everything behind what was appended so far becomes zeros up to size bytes in all, and
 * pi_out_put() then writes n bytes anywhere inside, from any thread, in any order. PI_E_RANGE for a size below what was appended. */
enum pi_code pi_out_extend(struct pi_out *o, uint64_t size, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_out_put(const struct pi_out *o, uint64_t offset, const void *data, size_t n,
                        struct pi_err *err) PI_MUST_CHECK;

/* Bytes appended so far. */
uint64_t pi_out_size(const struct pi_out *o);

/* Flushes and gives a path under which the unfinished file can be read, for a check before it appears.
 * *path_out is the caller's to free(); the path is good until commit or abort. */
enum pi_code pi_out_peek(struct pi_out *o, char **path_out, struct pi_err *err) PI_MUST_CHECK;

/* Flushes, syncs and renames over the target, then frees o in every case. */
enum pi_code pi_out_commit(struct pi_out *o, struct pi_err *err) PI_MUST_CHECK;

/* The same for n of them, which appear in this order: all or none. Where one cannot, those before it go again and what they replaced is back, except on file systems
 * without second names, where what was replaced is lost. A program that is killed between two leaves the first ones. */
enum pi_code pi_out_commit_all(struct pi_out *const *o, size_t n, struct pi_err *err) PI_MUST_CHECK;

/* Drops what was written and frees o; accepts NULL. */
void pi_out_abort(struct pi_out *o);

/* "dir/M.gguf" -> "dir/M.<kind>.gguf" (a path without ".gguf" gets the suffix appended).
 * New string, the caller's to free(); NULL with *err set on PI_E_NOMEM. */
char *pi_path_artifact(const char *model_path, const char *kind, struct pi_err *err) PI_MUST_CHECK;

/* A copy of the path that an option gave, or where given is NULL the artifact's beside the model. As above. */
char *pi_path_or_artifact(const char *given, const char *model_path, const char *kind,
                          struct pi_err *err) PI_MUST_CHECK;

/* The path that an option gave, whatever is there, or the artifact's beside the model where there is such a file, else NULL
 * in *path_out. The caller frees it. PI_E_NOMEM. */
enum pi_code pi_path_find_artifact(const char *given, const char *model_path, const char *kind,
                                   char **path_out, struct pi_err *err) PI_MUST_CHECK;

#endif
