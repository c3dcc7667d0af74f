/*
 * pi_torch.h - reader of PyTorch checkpoints as torch.save() writes them since 1.6: a zip file of stored (not compressed) entries, of which data.pkl is a
 * pickle that says what the tensors are and data/KEY are their storages.
 *
 * The pickle is interpreted for a fixed set of opcodes and globals (those that a dictionary of tensors needs); nothing in it is ever executed, and any other
 * opcode or global is refused by name. Storages stay where the file is mapped. Memory is bounded by the pickle's size, which may be 2 MiB. Files before 1.6 are recognised
 * and refused.
 */
#ifndef PI_TORCH_H
#define PI_TORCH_H

#include "convert/pi_source.h"

/* Is this a checkpoint, of this form or the old one? */
bool pi_torch_is(const uint8_t *data, size_t size);

/* Checks the bytes of one file and appends its tensors (unsorted); path is for messages and must live as long as the source. Entries of the dictionary that are
 * no tensors are left out; where it has no tensors at all but a dictionary of them under "state_dict", "model_state_dict", "model" or "module", that one is
 * taken. A file that is one tensor gives one called "tensor". PI_E_CORRUPT (a zip or pickle that contradicts itself), PI_E_UNSUPPORTED (the old form, a compressed or encrypted entry, big-endian, an opcode or
 * global outside the set, a tensor that is a view with other strides than its own), PI_E_NOMEM. */
enum pi_code pi_torch_parse(const uint8_t *data, size_t size, const char *path,
                            struct pi_source *src, struct pi_err *err) PI_MUST_CHECK;

#endif
