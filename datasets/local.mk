# Sample prompts, calibration text and the embedded demo model.
EXTRA_DIST += datasets/prompts.jsonl
EXTRA_DIST += datasets/demo.gguf datasets/README.md datasets/demo-text/train.txt datasets/demo-text/heldout.txt
EXTRA_DIST += datasets/hardware-demo.yaml datasets/hardware-example.yaml
