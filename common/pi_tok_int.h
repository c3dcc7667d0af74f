/*
 * pi_tok_int.h - what the parts of the tokenizer share; private to common/pi_tok*.c.
 *
 *   pi_tokenizer.c  the vocabulary, special tokens, the public calls
 *   pi_tok_table.c  hash tables: bytes -> symbol, pair of symbols -> merge
 *   pi_tok_merge.c  the merge loop both algorithms run: linked list + priority queue
 *   pi_tok_spm.c    SentencePiece: characters -> symbols, byte fallback
 *   pi_tok_bpe.c    byte-level: the byte alphabet, the list of merges, words -> symbols
 *   pi_tok_pre.c    byte-level: the patterns that cut a text into words
 *
 * A symbol is a string that merging can produce: the tokens come first (symbol i < n_vocab is token i), behind them the
 * strings that a list of merges names but the vocabulary lacks.
 */
#ifndef PI_TOK_INT_H
#define PI_TOK_INT_H

#include "common/pi_err.h"
#include "common/pi_gguf.h"
#include "common/pi_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PI_NO_SYMBOL        UINT32_MAX
#define PI_TOK_MAX_BYTES    (1u << 24) /* of one token's text */
#define PI_TOK_MAX_SPECIAL  4096u      /* bytes of a token that is looked for at every position */
#define PI_TOK_MAX_MERGES   (1u << 26)
#define PI_TOK_MAX_PATTERNS 3

enum pi_tok_algo {
    PI_TOK_SPM,
    PI_TOK_BPE
};

/* The numbers of tokenizer.ggml.token_type. */
enum pi_tok_type {
    PI_TOK_NORMAL = 1,
    PI_TOK_UNKNOWN = 2,
    PI_TOK_CONTROL = 3,
    PI_TOK_USER = 4,
    PI_TOK_UNUSED = 5,
    PI_TOK_BYTE = 6
};

struct pi_tok_sym {
    /* into the arena: the bytes it stands for (control tokens: the text it is written as) */
    size_t off;
    uint32_t len;
    uint8_t type;   /* enum pi_tok_type */
    bool eog;       /* ends a generation */
    bool mergeable; /* merging may produce it */
};

/* Bytes -> symbol. Open addressing; seeded, so that no file can be made to collide. */
struct pi_tok_table {
    uint32_t *slots; /* (mask + 1), PI_NO_SYMBOL where empty; owned */
    size_t mask, n;
};

struct pi_tok_pair {
    uint32_t left, right; /* symbols; left PI_NO_SYMBOL where the slot is empty */
    uint32_t rank, merged;
};

struct pi_tok_pairs {
    struct pi_tok_pair *slots; /* (mask + 1), owned */
    size_t mask, n;
};

enum pi_tok_prefix { /* see PI_TOK_KEY_METASPACE */
    PI_TOK_PREFIX_SPM,
    PI_TOK_PREFIX_FIRST,
    PI_TOK_PREFIX_ALWAYS
};

struct pi_tokenizer {
    enum pi_tok_prefix prefix_rule;
    enum pi_tok_algo algo;
    uint32_t n_vocab;
    struct pi_tok_sym *syms; /* (n_syms), owned */
    size_t n_syms, cap_syms;
    char *arena; /* owned */
    size_t n_arena, cap_arena;
    struct pi_tok_table table;
    uint64_t seed;
    uint32_t max_len; /* of a mergeable symbol, bytes */

    /* (n_special), ids of tokens matched as text, sorted by their bytes; owned */
    uint32_t *special;
    size_t n_special;
    size_t special_at[257]; /* special[special_at[b] .. special_at[b + 1]) start with byte b */

    int32_t bos, eos, unk;
    bool add_bos;
    uint32_t byte_sym[256]; /* SPM: byte tokens; BPE: symbols of one byte */

    /* SPM */
    bool add_space_prefix;
    bool words_apart; /* no token has a space behind another character */
    uint32_t *prio;   /* (n_vocab), smaller merges first; owned */

    /* BPE */
    bool ignore_merges; /* a word that is a token is that token, whatever the merges say */
    struct pi_tok_pairs pairs;
    unsigned n_patterns;
    pcre2_code *patterns[PI_TOK_MAX_PATTERNS]; /* owned */
};

/* A symbol of the text at work: a node of the linked list. */
struct pi_tok_node {
    uint32_t prev, next; /* UINT32_MAX: none */
    uint32_t off, len;   /* bytes of the word; len 0: merged away */
    uint32_t sym;
};

/* A merge that could be done: of a node and the one behind it, len bytes together, to sym. */
struct pi_tok_cand {
    uint64_t key; /* priority << 32 | left: the smallest is the best, leftmost merge */
    uint32_t len, sym;
};

/* Scratch of one encode call. */
struct pi_tok_work {
    const struct pi_tokenizer *t;
    struct pi_tokens *out;
    struct pi_tok_node *nodes;
    size_t n_nodes, cap_nodes;
    struct pi_tok_cand *heap;
    size_t n_heap, cap_heap;
    /* SPM: the first word with its space; BPE: the text with stand-ins for invalid bytes */
    char *buf;
    size_t cap_buf;
    size_t *cuts[2]; /* BPE: ends of the pieces before and after a pattern */
    size_t n_cuts[2], cap_cuts[2];
    pcre2_match_data *match;
    pcre2_match_context *limits;
};

/* The bytes of symbol i. */
static inline struct pi_str pi_tok_text(const struct pi_tokenizer *t, uint32_t i)
{
    return (struct pi_str){t->arena + t->syms[i].off, t->syms[i].len};
}

/* ---- tables ---- */

/* An empty table for n entries. */
enum pi_code pi_tok_table_init(struct pi_tok_table *table, size_t n,
                               struct pi_err *err) PI_MUST_CHECK;
/* The symbol of n bytes, or PI_NO_SYMBOL. */
uint32_t pi_tok_find(const struct pi_tokenizer *t, const char *s, size_t n);
/* Enters symbol i unless there is one with the same bytes; returns the one that is in the table then. The table has room. */
uint32_t pi_tok_enter(struct pi_tokenizer *t, uint32_t i);
enum pi_code pi_tok_pairs_init(struct pi_tok_pairs *pairs, size_t n,
                               struct pi_err *err) PI_MUST_CHECK;
/* The merge of two symbols, or NULL. */
const struct pi_tok_pair *pi_tok_find_pair(const struct pi_tokenizer *t, uint32_t left,
                                           uint32_t right);
/* Enters a merge; the first one of a pair stays. */
void pi_tok_enter_pair(struct pi_tokenizer *t, struct pi_tok_pair pair);

/* ---- the merge loop ---- */

/* Appends a node of the word at hand. */
enum pi_code pi_tok_add_node(struct pi_tok_work *w, uint32_t len, uint32_t sym,
                             struct pi_err *err) PI_MUST_CHECK;
/* Merges the nodes of word until no pair is left that merges, best first, leftmost first among equals. */
enum pi_code pi_tok_merge(struct pi_tok_work *w, const char *word,
                          struct pi_err *err) PI_MUST_CHECK;
/* The token of a byte that nothing else covers: its byte token; else, byte-level, U+FFFD; else the unknown token. PI_E_UNSUPPORTED without
 * any of these. */
enum pi_code pi_tok_emit_byte(struct pi_tok_work *w, uint8_t byte,
                              struct pi_err *err) PI_MUST_CHECK;

/* ---- the algorithms ---- */

/* The tables of one algorithm, once the tokens are loaded. */
enum pi_code pi_tok_spm_init(struct pi_tokenizer *t, const struct pi_gguf *g,
                             struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_tok_bpe_init(struct pi_tokenizer *t, const struct pi_gguf *g,
                             struct pi_err *err) PI_MUST_CHECK;
/* Encodes a text without special tokens. prefix: a space goes in front. */
enum pi_code pi_tok_spm_encode(struct pi_tok_work *w, const char *text, size_t n, bool prefix,
                               struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_tok_bpe_encode(struct pi_tok_work *w, const char *text, size_t n,
                               struct pi_err *err) PI_MUST_CHECK;

/* Text of the file -> the bytes it stands for, in place; the new length. SPM: U+2581 is a space. */
size_t pi_tok_spm_unescape(char *s, size_t n);
/* BPE: characters of the byte alphabet; false, and s untouched, when it has others. */
bool pi_tok_bpe_unescape(char *s, size_t n, size_t *n_out);

/* Compiles the patterns of a pre-tokeniser name, or of the architecture when name is empty. PI_E_UNSUPPORTED names it. */
enum pi_code pi_tok_pre_init(struct pi_tokenizer *t, struct pi_str name, struct pi_str arch,
                             struct pi_err *err) PI_MUST_CHECK;
/* Cuts n bytes of valid UTF-8 into words: their ends, in w->cuts[*which]. */
enum pi_code pi_tok_pre_split(struct pi_tok_work *w, const char *text, size_t n, unsigned *which,
                              struct pi_err *err) PI_MUST_CHECK;

#endif
