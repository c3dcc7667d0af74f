/*
 * tokenizer.model: a protocol buffer "ModelProto" of SentencePiece, of which the few fields below are read. Field numbers are those of SentencePiece's
 * sentencepiece_model.proto.
 */
#include "config.h"

#include "convert/pi_hf_vocab.h"
#include "common/pi_le.h"

#include <math.h>
#include <string.h>

enum {
    MODEL_PIECES = 1,
    MODEL_TRAINER = 2,
    MODEL_NORMALIZER = 3
};
enum {
    PIECE_TEXT = 1,
    PIECE_SCORE = 2,
    PIECE_TYPE = 3
};
enum {
    TRAINER_MODEL_TYPE = 3,
    TRAINER_UNK = 40,
    TRAINER_BOS = 41,
    TRAINER_EOS = 42,
    TRAINER_PAD = 43
};
enum {
    NORM_CHARSMAP = 2,
    NORM_DUMMY_PREFIX = 3,
    NORM_EXTRA_SPACES = 4
};
enum {
    MODEL_TYPE_UNIGRAM = 1,
    MODEL_TYPE_BPE = 2
};

struct pb {
    const uint8_t *p, *end;
};

struct field {
    uint32_t number, wire;
    uint64_t value;  /* varint, or the bits of a fixed one */
    struct pb bytes; /* length-delimited */
};

static bool read_varint(struct pb *b, uint64_t *out)
{
    uint64_t v = 0;

    for (unsigned shift = 0; shift < 64 && b->p < b->end; shift += 7) {
        uint8_t c = *b->p++;
        v |= (uint64_t)(c & 0x7f) << shift;
        if ((c & 0x80) == 0) {
            *out = v;
            return true;
        }
    }
    return false;
}

static bool read_fixed(struct pb *b, unsigned n, uint64_t *out)
{
    if ((size_t)(b->end - b->p) < n)
        return false;
    *out = pi_load_le(b->p, n);
    b->p += n;
    return true;
}

/* False at anything that is no whole field. */
static bool read_field(struct pb *b, struct field *f)
{
    uint64_t tag = 0, n = 0;

    *f = (struct field){0};
    if (!read_varint(b, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX)
        return false;
    f->number = (uint32_t)(tag >> 3);
    f->wire = (uint32_t)(tag & 7);
    switch (f->wire) {
    case 0:
        return read_varint(b, &f->value);
    case 1:
        return read_fixed(b, 8, &f->value);
    case 5:
        return read_fixed(b, 4, &f->value);
    case 2:
        if (!read_varint(b, &n) || n > (uint64_t)(b->end - b->p))
            return false;
        f->bytes = (struct pb){b->p, b->p + n};
        b->p += n;
        return true;
    default:
        return false;
    }
}

static enum pi_code broken(const char *path, const uint8_t *base, const struct pb *b,
                           struct pi_err *err)
{
    return pi_err_set(err, PI_E_CORRUPT, "%s: no SentencePiece model: broken field before byte %zu",
                      path, (size_t)(b->p - base));
}

static enum pi_code read_piece(struct pb b, const uint8_t *base, const char *path,
                               struct pi_vocab *v, struct pi_err *err)
{
    struct field f;
    struct pb text = {base, base};
    uint64_t type = PI_TOKEN_NORMAL;
    float score = 0.0f;

    while (b.p < b.end) {
        if (!read_field(&b, &f))
            return broken(path, base, &b, err);
        if (f.number == PIECE_TEXT && f.wire == 2)
            text = f.bytes;
        else if (f.number == PIECE_SCORE && f.wire == 5)
            memcpy(&score, &(uint32_t){(uint32_t)f.value}, sizeof(score));
        else if (f.number == PIECE_TYPE && f.wire == 0)
            type = f.value;
    }
    if (type < PI_TOKEN_NORMAL || type > PI_TOKEN_BYTE || !isfinite(score))
        return pi_err_set(err, PI_E_CORRUPT, "%s: piece %zu has type %llu and score %g", path, v->n,
                          (unsigned long long)type, (double)score);
    return pi_vocab_set(v, path, v->n, (const char *)text.p, (size_t)(text.end - text.p), score,
                        (enum pi_token_type)type, err);
}

/* An int32 of a protocol buffer: negative ones are sign-extended to 64 bits. */
static int64_t as_id(uint64_t value)
{
    int32_t id = (int32_t)(uint32_t)value;

    return id < 0 ? -1 : id;
}

static enum pi_code read_trainer(struct pb b, const uint8_t *base, const char *path,
                                 struct pi_vocab *v, struct pi_err *err)
{
    struct field f;
    uint64_t model_type = MODEL_TYPE_UNIGRAM;

    while (b.p < b.end) {
        if (!read_field(&b, &f))
            return broken(path, base, &b, err);
        if (f.wire != 0)
            continue;
        if (f.number == TRAINER_MODEL_TYPE)
            model_type = f.value;
        else if (f.number == TRAINER_UNK)
            v->unk = as_id(f.value);
        else if (f.number == TRAINER_BOS)
            v->bos = as_id(f.value);
        else if (f.number == TRAINER_EOS)
            v->eos = as_id(f.value);
        else if (f.number == TRAINER_PAD)
            v->pad = as_id(f.value);
    }
    if (model_type != MODEL_TYPE_BPE)
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: a SentencePiece model of type %s is not supported (supported: BPE)",
                          path, model_type == MODEL_TYPE_UNIGRAM ? "unigram" : "word or character");
    return PI_OK;
}

static enum pi_code read_normalizer(struct pb b, const uint8_t *base, const char *path,
                                    const struct pi_notes *notes, struct pi_vocab *v,
                                    struct pi_err *err)
{
    struct field f;
    bool charsmap = false, extra = true; /* the format's default removes extra spaces */

    while (b.p < b.end) {
        if (!read_field(&b, &f))
            return broken(path, base, &b, err);
        if (f.number == NORM_CHARSMAP && f.wire == 2)
            charsmap = f.bytes.end > f.bytes.p;
        else if (f.number == NORM_DUMMY_PREFIX && f.wire == 0)
            v->add_space_prefix = f.value != 0;
        else if (f.number == NORM_EXTRA_SPACES && f.wire == 0)
            extra = f.value != 0;
    }
    if (charsmap || extra)
        pi_note(
            notes,
            "%s: its text normalisation (%s) is not applied: unusual characters and runs of spaces may get other tokens",
            path, charsmap ? "a character map" : "removal of extra spaces");
    return PI_OK;
}

enum pi_code pi_spm_parse(const uint8_t *data, size_t n, const char *path,
                          const struct pi_notes *notes, struct pi_vocab *v, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pb b = {data, data + n};
    struct field f;

    v->spm = true;
    v->pre = "default";
    v->add_space_prefix = true;
    v->unk = 0;
    v->bos = 1;
    v->eos = 2;
    v->pad = v->eot = -1;
    while (b.p < b.end) {
        if (!read_field(&b, &f))
            PI_TRY(broken(path, data, &b, err));
        if (f.wire != 2)
            continue;
        if (f.number == MODEL_PIECES)
            PI_TRY(read_piece(f.bytes, data, path, v, err));
        else if (f.number == MODEL_TRAINER)
            PI_TRY(read_trainer(f.bytes, data, path, v, err));
        else if (f.number == MODEL_NORMALIZER)
            PI_TRY(read_normalizer(f.bytes, data, path, notes, v, err));
    }
    if (v->n == 0)
        PI_FAIL(err, PI_E_CORRUPT, "%s: a SentencePiece model without pieces", path);
out:
    return rc;
}
