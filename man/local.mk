# Hand-written mdoc pages; the version is put in by sed.
pi_man_in = man/pi-convert.1.in man/pi-place.1.in man/pi-profile.1.in man/pi-run.1.in man/pi-train-predictor.1.in \
            man/pi-artifacts.5.in
EXTRA_DIST += $(pi_man_in)
nodist_man_MANS += man/pi-convert.1 man/pi-place.1 man/pi-profile.1 man/pi-run.1 man/pi-train-predictor.1 man/pi-artifacts.5
CLEANFILES += $(nodist_man_MANS)
pi_man_sed = $(SED) -e 's|@VERSION[@]|$(VERSION)|g' -e 's|@PACKAGE[@]|$(PACKAGE)|g'
.1.in.1:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(pi_man_sed) $< > $@-t && mv -f $@-t $@
.5.in.5:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(pi_man_sed) $< > $@-t && mv -f $@-t $@
