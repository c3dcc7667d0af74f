# libpi_profiler.a: counting activations, training predictors; pi-profile, pi-train-predictor.
noinst_LIBRARIES += libpi_profiler.a
libpi_profiler_a_SOURCES = \
	profiler/pi_calibrate.c profiler/pi_calibrate.h \
	profiler/pi_census_print.c profiler/pi_census_print.h \
	profiler/pi_choose.c profiler/pi_choose.h \
	profiler/pi_collect.c profiler/pi_collect.h \
	profiler/pi_damage.c profiler/pi_damage.h \
	profiler/pi_fit.c profiler/pi_fit.h \
	profiler/pi_labels.c profiler/pi_labels.h \
	profiler/pi_merge.c profiler/pi_merge.h \
	profiler/pi_net.c profiler/pi_net.h \
	profiler/pi_print.c profiler/pi_print.h \
	profiler/pi_profile_page.c profiler/pi_profile_page.h \
	profiler/pi_profile_report.c profiler/pi_profile_report.h \
	profiler/pi_profile_run.c profiler/pi_profile_run.h \
	profiler/pi_random.h \
	profiler/pi_train.c profiler/pi_train.h \
	profiler/pi_train_run.c profiler/pi_train_run.h \
	profiler/pi_trainset.c profiler/pi_trainset.h
bin_PROGRAMS += pi-profile pi-train-predictor
pi_profile_SOURCES = profiler/pi-profile.c
pi_profile_LDADD   = libpi_profiler.a $(PI_RUNTIME_LIBS)
pi_train_predictor_SOURCES = profiler/pi-train-predictor.c
pi_train_predictor_LDADD   = libpi_profiler.a $(PI_RUNTIME_LIBS)
