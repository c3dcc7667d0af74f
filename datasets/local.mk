# Sample prompts, calibration text and the embedded demo model.
