# Hand-written mdoc pages; the version is put in by sed.
pi_man_in =
EXTRA_DIST += $(pi_man_in)
pi_man_sed = $(SED) -e 's|@VERSION[@]|$(VERSION)|g' -e 's|@PACKAGE[@]|$(PACKAGE)|g'
.1.in.1:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(pi_man_sed) $< > $@-t && mv -f $@-t $@
.5.in.5:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(pi_man_sed) $< > $@-t && mv -f $@-t $@
