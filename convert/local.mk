# libpi_convert.a: readers of other formats, quantisation of files; pi-convert.
noinst_LIBRARIES += libpi_convert.a
libpi_convert_a_SOURCES = \
	convert/pi_argument.c convert/pi_argument.h \
	convert/pi_choose_types.c \
	convert/pi_convert.c convert/pi_convert.h convert/pi_convert_int.h \
	convert/pi_convert_check.c \
	convert/pi_convert_open.c \
	convert/pi_convert_report.c convert/pi_convert_report.h \
	convert/pi_dump.c convert/pi_dump.h \
	convert/pi_gguf_import.c convert/pi_gguf_import.h \
	convert/pi_hf.c convert/pi_hf.h convert/pi_hf_int.h \
	convert/pi_hf_arch.c \
	convert/pi_hf_forward.c convert/pi_hf_forward.h \
	convert/pi_hf_keys.c \
	convert/pi_hf_map.c \
	convert/pi_hf_rope.c \
	convert/pi_hf_vocab.c convert/pi_hf_vocab.h \
	convert/pi_import.c convert/pi_import.h \
	convert/pi_json.c convert/pi_json.h \
	convert/pi_note.c convert/pi_note.h \
	convert/pi_recipe.c convert/pi_recipe.h \
	convert/pi_safetensors.c convert/pi_safetensors.h \
	convert/pi_selfcheck.c convert/pi_selfcheck.h \
	convert/pi_selfcheck_predictor.c \
	convert/pi_source.c convert/pi_source.h \
	convert/pi_spm_model.c \
	convert/pi_tok_form.c convert/pi_tok_form.h convert/pi_tok_json.c \
	convert/pi_torch.c convert/pi_torch.h convert/pi_torch_int.h convert/pi_torch_pickle.c convert/pi_torch_zip.c \
	convert/pi_vocab.c convert/pi_vocab.h \
	convert/pi_write_model.c convert/pi_write_model.h \
	convert/pi_yaml_out.c convert/pi_yaml_out.h
bin_PROGRAMS += pi-convert
pi_convert_SOURCES = convert/pi-convert.c
pi_convert_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
