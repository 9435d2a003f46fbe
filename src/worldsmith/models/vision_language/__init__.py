"""Vision-language models and text decoders of Hugging Face transformers."""
