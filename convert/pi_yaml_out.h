/*
 * pi_yaml_out.h - writing YAML (libyaml's emitter) without its bookkeeping: the first error sticks, pi_yaml_end() reports it.
 */
#ifndef PI_YAML_OUT_H
#define PI_YAML_OUT_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <yaml.h>

struct pi_yaml_out {
    yaml_emitter_t emitter;
    bool failed;
};

enum pi_code pi_yaml_begin(struct pi_yaml_out *y, FILE *out, struct pi_err *err) PI_MUST_CHECK;
/* Ends the document and frees y in every case. PI_E_IO. */
enum pi_code pi_yaml_end(struct pi_yaml_out *y, struct pi_err *err) PI_MUST_CHECK;

void pi_yaml_map(struct pi_yaml_out *y, bool flow);
void pi_yaml_map_end(struct pi_yaml_out *y);
void pi_yaml_list(struct pi_yaml_out *y, bool flow);
void pi_yaml_list_end(struct pi_yaml_out *y);
/* Any bytes: what is no UTF-8 is written as \xNN text. Quoted, where a reader would take it for something else. */
void pi_yaml_text(struct pi_yaml_out *y, const char *p, size_t n);
void pi_yaml_key(struct pi_yaml_out *y, const char *key); /* also a plain word */
void pi_yaml_u64(struct pi_yaml_out *y, uint64_t v);
void pi_yaml_i64(struct pi_yaml_out *y, int64_t v);
void pi_yaml_f32(struct pi_yaml_out *y, float v); /* shortest form that reads back the same */
void pi_yaml_f64(struct pi_yaml_out *y, double v);
void pi_yaml_bool(struct pi_yaml_out *y, bool v);

#endif
