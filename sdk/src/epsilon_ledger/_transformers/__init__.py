"""Parts of the Hugging Face adapter."""
