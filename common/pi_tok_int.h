/* pi_tok_int.h - what the two tokenizer algorithms share; private to common/pi_tok*.c */
