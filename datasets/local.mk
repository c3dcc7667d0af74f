# Sample prompts, calibration text and the demo model with what was made of it: installed for pi-run --demo and for trying the other programs.
dist_pkgdata_DATA = datasets/demo.gguf datasets/demo.predictor.gguf datasets/demo.profile.gguf datasets/prompts.jsonl datasets/hardware-demo.yaml datasets/hardware-example.yaml
pi_demo_textdir = $(pkgdatadir)/demo-text
dist_pi_demo_text_DATA = datasets/demo-text/train.txt datasets/demo-text/heldout.txt
EXTRA_DIST += datasets/README.md

# Programs of a build tree find it as installed ones do.
all-local: share/$(PACKAGE)
share/$(PACKAGE):
	@$(MKDIR_P) share
	$(AM_V_GEN)$(LN_S) "$(abs_top_srcdir)/datasets" $@
clean-local:
	rm -f share/$(PACKAGE)
	if test -d share; then rmdir share; fi

# Folders that are this package's alone go too.
uninstall-hook:
	for d in "$(DESTDIR)$(pi_demo_textdir)" "$(DESTDIR)$(pkgdatadir)"; do if test -d "$$d"; then rmdir "$$d" || :; fi; done
