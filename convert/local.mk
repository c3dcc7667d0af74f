# libpi_convert.a: readers of other formats, quantisation of files; pi-convert.
noinst_LIBRARIES += libpi_convert.a
libpi_convert_a_SOURCES = \
	convert/pi_safetensors.c convert/pi_safetensors.h \
	convert/pi_hf.c convert/pi_hf.h \
	convert/pi_hf_vocab.c \
	convert/pi_dump.c convert/pi_dump.h \
	convert/pi_write_model.c convert/pi_write_model.h \
	convert/pi_selfcheck.c convert/pi_selfcheck.h
bin_PROGRAMS += pi-convert
pi_convert_SOURCES = convert/pi-convert.c
pi_convert_LDADD   = libpi_convert.a $(PI_RUNTIME_LIBS)
