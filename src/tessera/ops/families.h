// The files of this room that have kernels. Each adds the ways of its own operations; an operation of a known family
// needs no line here.
#pragma once

namespace tessera {

class Kernels;

void add_pointwise_kernels(Kernels& kernels);
void add_conv_kernels(Kernels& kernels);
void add_pool_kernels(Kernels& kernels);
void add_upsample_kernels(Kernels& kernels);
void add_resample_kernels(Kernels& kernels);
void add_channel_kernels(Kernels& kernels);
void add_dropout_kernels(Kernels& kernels);
void add_prelu_kernels(Kernels& kernels);
void add_norm_kernels(Kernels& kernels);
void add_head_kernels(Kernels& kernels);

// Those of GPUs, which come before the general ones of their family.
void add_gpu_pool_kernels(Kernels& kernels);

}  // namespace tessera
