"""The Llama family: LlamaForCausalLM and MistralForCausalLM, and GGUF files of architecture llama.

Everything that is specific to this family is in this folder: reading its config, the names and shapes of its tensors,
its weights in memory, and its two decoders, one in torch and one on the native kernels.
"""
