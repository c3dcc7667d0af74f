# libpi_common.a: what all programs share; no kernels.
noinst_LIBRARIES += libpi_common.a
libpi_common_a_SOURCES = \
	common/pi_affinity.c common/pi_affinity.h \
	common/pi_alloc.c common/pi_alloc.h \
	common/pi_artifact.c common/pi_artifact.h \
	common/pi_artifact_get.c common/pi_artifact_int.h \
	common/pi_bandwidth.c common/pi_bandwidth.h \
	common/pi_census.c common/pi_census.h \
	common/pi_cgroup.c common/pi_cgroup.h \
	common/pi_cores.c common/pi_cores.h \
	common/pi_dataset.c common/pi_dataset.h \
	common/pi_err.c common/pi_err.h \
	common/pi_estimate.c common/pi_estimate.h \
	common/pi_estimate_gpu.c common/pi_estimate_int.h \
	common/pi_file.c common/pi_file.h common/pi_file_int.h \
	common/pi_file_commit.c common/pi_file_room.c common/pi_file_sweep.c \
	common/pi_gguf.c common/pi_gguf.h \
	common/pi_gguf_get.c common/pi_gguf_int.h \
	common/pi_gguf_split.c \
	common/pi_gguf_write.c \
	common/pi_hardware.c common/pi_hardware.h \
	common/pi_html.c common/pi_html.h \
	common/pi_html_style.c common/pi_html_style.h \
	common/pi_lineage.c \
	common/pi_opt.c common/pi_opt.h \
	common/pi_page.c common/pi_page.h common/pi_page_layers.c \
	common/pi_placement.c common/pi_placement.h \
	common/pi_pool.c common/pi_pool.h \
	common/pi_predictor.c common/pi_predictor.h \
	common/pi_profile.c common/pi_profile.h \
	common/pi_progress.c common/pi_progress.h \
	common/pi_prompt_size.c common/pi_prompt_size.h \
	common/pi_reads.c common/pi_reads.h \
	common/pi_schedule.c common/pi_schedule.h \
	common/pi_shape.c common/pi_shape.h \
	common/pi_le.h \
	common/pi_size.h \
	common/pi_svg.c common/pi_svg.h \
	common/pi_tok_bpe.c common/pi_tok_int.h common/pi_tok_merge.c \
	common/pi_tok_pre.c common/pi_tok_spm.c common/pi_tok_table.c \
	common/pi_tokenizer.c common/pi_tokenizer.h \
	common/pi_type.c common/pi_type.h \
	common/pi_utf8.c common/pi_utf8.h

EXTRA_DIST += docs/formats.md
