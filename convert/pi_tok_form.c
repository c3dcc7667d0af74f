#include "config.h"

#include "convert/pi_tok_form.h"

#include <stdlib.h>
#include <string.h>

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */

#define ENGLISH "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The parts that are known, as JSON: a part is one of them when it has these keys with these values. Keys in "any" may have any value, and every key
 * but "type" may be missing where the library's default is the value given. */
struct part {
    const char *name, *json, *defaults, *any;
};

enum {
    BYTE_LEVEL,
    BYTE_LEVEL_PLAIN,
    PUNCTUATION,
    DIGITS,
    DIGITS_SINGLE,
    THREE_DIGITS,
    LLAMA3,
    QWEN2,
    PREPEND,
    REPLACE,
    REPLACE_BACK,
    NFC,
    BYTE_FALLBACK,
    FUSE,
    STRIP,
    BYTE_LEVEL_ANY,
    N_PARTS
};

#define SPLIT(regex)                                                                            \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"inv" \
    "ert\":false}"

static const struct part parts[N_PARTS] = {
    [BYTE_LEVEL] = {"ByteLevel",
                    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}",
                    "add_prefix_space use_regex", "trim_offsets"},
    [BYTE_LEVEL_PLAIN] = {"ByteLevel",
                          "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}",
                          "add_prefix_space", "trim_offsets"},
    [PUNCTUATION] = {"Punctuation", "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}", "",
                     ""},
    [DIGITS] = {"Digits", "{\"type\":\"Digits\",\"individual_digits\":false}", "individual_digits",
                ""},
    [DIGITS_SINGLE] = {"Digits", "{\"type\":\"Digits\",\"individual_digits\":true}", "", ""},
    [THREE_DIGITS] = {"Split", SPLIT("[0-9][0-9][0-9]"), "invert", ""},
    [LLAMA3] = {"Split", NULL, "invert", ""}, /* see regexes */
    [QWEN2] = {"Split", NULL, "invert", ""},
    [PREPEND] = {"Prepend", "{\"type\":\"Prepend\",\"prepend\":\"" SPACE_MARK "\"}", "", ""},
    [REPLACE] = {"Replace",
                 "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE_MARK
                 "\"}",
                 "", ""},
    [REPLACE_BACK] = {"Replace",
                      "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SPACE_MARK
                      "\"},\"content\":\" \"}",
                      "", ""},
    [NFC] = {"NFC", "{\"type\":\"NFC\"}", "", ""},
    [BYTE_FALLBACK] = {"ByteFallback", "{\"type\":\"ByteFallback\"}", "", ""},
    [FUSE] = {"Fuse", "{\"type\":\"Fuse\"}", "", ""},
    [STRIP] = {"Strip", "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}", "", ""},
    /* where only offsets and the way back depend on it */
    [BYTE_LEVEL_ANY] = {"ByteLevel", "{\"type\":\"ByteLevel\"}", "",
                        "add_prefix_space trim_offsets use_regex"},
};

static const char *const regexes[N_PARTS] = {
    [LLAMA3] = ENGLISH "\\p{N}{1,3}" REST, [QWEN2] = ENGLISH "\\p{N}" REST};

/* word is one of the words of list, which single spaces separate. */
static bool has_word(const char *list, const char *word)
{
    const size_t n = strlen(word);

    for (;; list++) {
        const size_t len = strcspn(list, " ");

        if (len > 0 && len == n && memcmp(list, word, n) == 0)
            return true;
        list += len;
        if (*list == '\0')
            return false;
    }
}

/* The part's description; the caller's to json_decref(). NULL: no memory. */
static json_t *describe(int p)
{
    if (regexes[p] == NULL)
        return json_loads(parts[p].json, 0, NULL);
    return json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern", "Regex", regexes[p],
                     "behavior", "Isolated", "invert", 0);
}

static bool is_part(const json_t *o, int p)
{
    json_t *want = describe(p), *v;
    const char *key;
    bool same = want != NULL && json_is_object(o);

    json_object_foreach(want, key, v)
    {
        const json_t *has = json_object_get(o, key);

        same = same && (has == NULL ? has_word(parts[p].defaults, key) : json_equal(has, v));
    }
    json_object_foreach((json_t *)(uintptr_t)o, key, v) same =
        same && (json_object_get(want, key) != NULL || has_word(parts[p].any, key));
    json_decref(want);
    return same;
}

/* One of the lists of parts that are known, each ended by -1; a part alone is a list of one, nothing an empty one. -1: none of them. */
static int find_list(const json_t *o, const char *list_key, const int (*lists)[5], int n)
{
    const json_t *list = json_object_get(o, list_key);
    const size_t k = list != NULL ? json_array_size(list) : o != NULL && !json_is_null(o);

    for (int i = 0; i < n; i++) {
        size_t at = 0;

        while (at < k && lists[i][at] >= 0 &&
               is_part(list != NULL ? json_array_get(list, at) : o, lists[i][at]))
            at++;
        if (at == k && lists[i][at] < 0)
            return i;
    }
    return -1;
}

static const char *type_of(const json_t *o)
{
    const char *s = json_string_value(json_object_get(o, "type"));

    return s != NULL ? s : "";
}

/* What is refused, in its own words; a list by the part that is least known. */
static enum pi_code refuse(const struct pi_json *j, const char *what, const json_t *o,
                           const char *list_key, struct pi_err *err)
{
    enum pi_code rc;
    char *text;

    for (size_t i = 0; i < json_array_size(json_object_get(o, list_key)); i++) {
        const json_t *e = json_array_get(json_object_get(o, list_key), i);
        bool known = false;

        for (int p = 0; p < N_PARTS; p++)
            known = known || is_part(e, p);
        if (!known) {
            o = e;
            break;
        }
    }
    text = json_dumps(o, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text == NULL && o != NULL)
        return pi_err_set(err, PI_E_NOMEM, "%s: %s", j->path, what);
    rc = pi_err_set(err, PI_E_UNSUPPORTED, "%s: %s %.300s is not supported", j->path, what,
                    text != NULL ? text : "(none)");
    free(text);
    return rc;
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static enum pi_code read_bytes(const struct pi_json *j, const struct pi_notes *notes,
                               struct pi_tok_form *f, struct pi_err *err)
{
    static const int splits[][5] = {{BYTE_LEVEL, -1},
                                    {PUNCTUATION, BYTE_LEVEL, DIGITS, THREE_DIGITS, -1},
                                    {DIGITS_SINGLE, BYTE_LEVEL, -1},
                                    {LLAMA3, BYTE_LEVEL_PLAIN, -1},
                                    {QWEN2, BYTE_LEVEL_PLAIN, -1}};
    static const char *const names[] = {"gpt-2", "falcon", "starcoder", "llama-bpe", "qwen2"};
    static const int norms[][5] = {{-1}, {NFC, -1}}, backs[][5] = {{-1}, {BYTE_LEVEL_ANY, -1}};
    const json_t *pre = json_object_get(j->root, "pre_tokenizer"),
                 *norm = json_object_get(j->root, "normalizer"),
                 *dec = json_object_get(j->root, "decoder"),
                 *ignore = json_object_get(json_object_get(j->root, "model"), "ignore_merges");
    const int split = find_list(pre, "pretokenizers", splits, 5),
              n = find_list(norm, "normalizers", norms, 2);

    if (split < 0)
        return refuse(j, "pre-tokeniser", pre, "pretokenizers", err);
    if (n < 0)
        return refuse(j, "normaliser", norm, "normalizers", err);
    if (find_list(dec, "decoders", backs, 2) < 0)
        return refuse(j, "decoder", dec, "decoders", err);
    f->pre = names[split];
    if (n == 1)
        pi_note(notes,
                "%s: its normalisation (NFC) is not applied: text is taken as composed already",
                j->path);
    /* Llama 3's words that are tokens are looked up whole; its first files do not say so yet. */
    if (split != 3 && json_is_true(ignore))
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: \"ignore_merges\": true with the pre-tokeniser of %s is not "
                          "supported",
                          j->path, f->pre);
    if (split == 3 && ignore == NULL)
        pi_note(notes, "%s: no \"ignore_merges\": taken as true, as Llama 3 has it", j->path);
    if (split == 3 && ignore != NULL && !json_is_true(ignore))
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: \"ignore_merges\": false with the pre-tokeniser of Llama 3 is not "
                          "supported",
                          j->path);
    return PI_OK;
}

/* ---- characters with byte fallback ---------------------------------------------------------- */

/* "▁" in front of the text and for every space; whether in words, see pi_tok_json.c. */
static enum pi_code read_metaspace(const struct pi_json *j, const json_t *o, bool *said,
                                   struct pi_tok_form *f, struct pi_err *err)
{
    static const char known[] = "type replacement prepend_scheme add_prefix_space split str_rep";
    const char *mark = json_string_value(json_object_get(o, "replacement")), *key,
               *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    json_t *v;

    *said = strcmp(type_of(o), "Metaspace") == 0;
    if (!*said)
        return PI_OK;
    if (scheme == NULL)
        scheme = json_is_false(json_object_get(o, "add_prefix_space")) ? "never" : "always";
    json_object_foreach((json_t *)(uintptr_t)o, key,
                        v) if (!has_word(known, key)) return refuse(j, "pre-tokeniser", o, "", err);
    if (mark == NULL || strcmp(mark, SPACE_MARK) != 0 ||
        (strcmp(scheme, "never") != 0 && strcmp(scheme, "first") != 0 &&
         strcmp(scheme, "always") != 0))
        return refuse(j, "pre-tokeniser", o, "", err);
    f->add_space_prefix = strcmp(scheme, "never") != 0;
    f->metaspace = !f->add_space_prefix ? NULL : strcmp(scheme, "first") == 0 ? "first" : "always";
    return PI_OK;
}

static enum pi_code read_characters(const struct pi_json *j, struct pi_tok_form *f,
                                    struct pi_err *err)
{
    static const int norms[][5] = {{-1}, {REPLACE, -1}, {PREPEND, REPLACE, -1}},
                     backs[][5] = {{-1},
                                   {REPLACE_BACK, BYTE_FALLBACK, FUSE, -1},
                                   {REPLACE_BACK, BYTE_FALLBACK, FUSE, STRIP, -1},
                                   {BYTE_FALLBACK, FUSE, -1}};
    const json_t *pre = json_object_get(j->root, "pre_tokenizer"),
                 *norm = json_object_get(j->root, "normalizer"),
                 *dec = json_object_get(j->root, "decoder");
    const int n = find_list(norm, "normalizers", norms, 3);
    bool metaspace = false;
    enum pi_code rc;

    f->spm = true;
    f->pre = "default";
    if (n < 0)
        return refuse(j, "normaliser", norm, "normalizers", err);
    rc = read_metaspace(j, pre, &metaspace, f, err);
    if (rc != PI_OK)
        return rc;
    if (!metaspace && pre != NULL && !json_is_null(pre))
        return refuse(j, "pre-tokeniser with byte fallback", pre, "pretokenizers", err);
    if (!metaspace && n == 0)
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: byte fallback without a mark for spaces is not supported", j->path);
    if (n == 2) {
        if (metaspace)
            return refuse(j, "two parts for spaces: pre-tokeniser", pre, "", err);
        f->add_space_prefix = true;
    }
    if (find_list(dec, "decoders", backs, 4) < 0 && strcmp(type_of(dec), "Metaspace") != 0)
        return refuse(j, "decoder", dec, "decoders", err);
    return PI_OK;
}

/* ---- around --------------------------------------------------------------------------------- */

/* The text that a special token of a template stands for, or NULL. */
static const char *template_token(const json_t *post, const json_t *e)
{
    const char *name = json_string_value(json_object_get(json_object_get(e, "SpecialToken"), "id"));
    const json_t *tokens =
        json_object_get(json_object_get(json_object_get(post, "special_tokens"), name), "tokens");

    return name != NULL && json_array_size(tokens) == 1
               ? json_string_value(json_array_get(tokens, 0))
               : NULL;
}

/* At most one token in front of the text and one behind it. */
static enum pi_code read_template(const struct pi_json *j, const json_t *post,
                                  struct pi_tok_form *f, struct pi_err *err)
{
    const json_t *single = json_object_get(post, "single");
    bool behind = false;

    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *e = json_array_get(single, i);
        const char *text = template_token(post, e);

        if (!behind && json_object_get(e, "Sequence") != NULL)
            behind = true;
        else if (text == NULL || (behind ? f->eos : f->bos) != NULL)
            return refuse(j, "post-processor", post, "", err);
        else if (behind)
            f->eos = text;
        else
            f->bos = text;
    }
    if (!behind)
        return refuse(j, "post-processor", post, "", err);
    f->add_bos = f->bos != NULL;
    f->add_eos = f->eos != NULL;
    return PI_OK;
}

static enum pi_code read_post(const struct pi_json *j, const json_t *post, struct pi_tok_form *f,
                              struct pi_err *err)
{
    const json_t *list = json_object_get(post, "processors");
    enum pi_code rc = PI_OK;

    if (post == NULL || json_is_null(post) || is_part(post, BYTE_LEVEL_ANY))
        return PI_OK;
    if (strcmp(type_of(post), "TemplateProcessing") == 0)
        return read_template(j, post, f, err);
    if (strcmp(type_of(post), "Sequence") != 0)
        return refuse(j, "post-processor", post, "", err);
    for (size_t i = 0; i < json_array_size(list) && rc == PI_OK; i++) {
        const json_t *e = json_array_get(list, i);

        rc = strcmp(type_of(e), "Sequence") == 0 ? refuse(j, "post-processor", e, "", err)
                                                 : read_post(j, e, f, err);
    }
    return rc;
}

/* The model's own keys: what is no plain BPE. */
static enum pi_code check_model(const struct pi_json *j, const json_t *model, struct pi_err *err)
{
    static const char known[] = "type dropout unk_token continuing_subword_prefix "
                                "end_of_word_suffix fuse_unk byte_fallback ignore_merges vocab "
                                "merges";
    const char *key;
    json_t *v;

    if (strcmp(type_of(model), "BPE") != 0 &&
        !(*type_of(model) == '\0' && json_is_array(json_object_get(model, "merges"))))
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: tokenizer model \"%.40s\" is not supported (supported: BPE)",
                          j->path, type_of(model));
    json_object_foreach((json_t *)(uintptr_t)model, key, v)
    {
        const bool flag = strcmp(key, "byte_fallback") == 0 || strcmp(key, "ignore_merges") == 0 ||
                          strcmp(key, "fuse_unk") == 0;
        const bool none = strcmp(key, "dropout") == 0 ||
                          strcmp(key, "continuing_subword_prefix") == 0 ||
                          strcmp(key, "end_of_word_suffix") == 0;
        const bool empty = json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0) ||
                           (json_is_number(v) && json_number_value(v) == 0.0);

        if (!has_word(known, key) || (none && !empty) || (flag && !json_is_boolean(v))) {
            char what[80];
            const size_t n = strlen(key) < 40 ? strlen(key) : 40;

            memcpy(what, "the model's \"", 13);
            memcpy(what + 13, key, n);
            memcpy(what + 13 + n, "\":", 3);
            return refuse(j, what, v, "", err);
        }
    }
    return PI_OK;
}

enum pi_code pi_tok_form_read(const struct pi_json *j, const struct pi_notes *notes,
                              struct pi_tok_form *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_tok_form f = {.spm = false};
    const json_t *model = json_object_get(j->root, "model");

    PI_TRY(check_model(j, model, err));
    PI_TRY(json_is_true(json_object_get(model, "byte_fallback")) ? read_characters(j, &f, err)
                                                                 : read_bytes(j, notes, &f, err));
    PI_TRY(read_post(j, json_object_get(j->root, "post_processor"), &f, err));
    *out = f;
out:
    return rc;
}
