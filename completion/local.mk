# Completion for bash. It is loaded by a command's name, so each program has a copy of the one file.
bashcompletiondir = $(datadir)/bash-completion/completions
pi_completions = completion/pi-convert completion/pi-profile completion/pi-train-predictor completion/pi-place completion/pi-run
nodist_bashcompletion_DATA = $(pi_completions)
EXTRA_DIST += completion/pi-toolchain.bash
CLEANFILES += $(pi_completions)
$(pi_completions): completion/pi-toolchain.bash
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)cp -f $(srcdir)/completion/pi-toolchain.bash $@-t && mv -f $@-t $@
