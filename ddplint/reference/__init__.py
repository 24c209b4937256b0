"""The reference finetune model: a molecule encoder that still carries its checkpoint's pretraining parts."""
