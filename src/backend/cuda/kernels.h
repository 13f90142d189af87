#pragma once

#include "backend/backend.h"
#include "backend/cuda/cuda_common.h"

// The launchers of our own kernels, one file per layer kind. Arguments are those of Backend's
// virtuals, after the context they run in.
namespace kintsugi::cuda {

// elementwise.cu
void copy(const Context& context, Tensor destination, Tensor source);
void fill(const Context& context, Tensor x, double value);
void add(const Context& context, Tensor y, Tensor x);

// bias.cu
void bias_backward(const Context& context, Tensor dbias, Tensor dy);
// c = product (accumulator precision) + bias [+ residual]: for products whose library call cannot
// add a bias.
void finish_product(const Context& context, Tensor c, Tensor product, Tensor bias, Tensor residual);

// rms_norm.cu
void rms_norm_forward(const Context& context, Tensor y, Tensor rstd, Tensor x, Tensor weight,
                      double eps);
void rms_norm_backward(const Context& context, Tensor dx, Tensor dweight, Tensor dy, Tensor x,
                       Tensor weight, Tensor rstd, Tensor residual_gradient);

// layer_norm.cu
void layer_norm_forward(const Context& context, Tensor y, Tensor mean, Tensor rstd, Tensor x,
                        Tensor weight, Tensor bias, double eps);
void layer_norm_backward(const Context& context, Tensor dx, Tensor dweight, Tensor dbias, Tensor dy,
                         Tensor x, Tensor weight, Tensor mean, Tensor rstd,
                         Tensor residual_gradient);

// rope.cu
void rope(const Context& context, Tensor x, Tensor table, Tensor positions, bool inverse);

// swiglu.cu
void swiglu_forward(const Context& context, Tensor out, Tensor gate_up);
void swiglu_backward(const Context& context, Tensor dgate_up, Tensor dout, Tensor gate_up);

// gelu.cu
void gelu_forward(const Context& context, Tensor out, Tensor x);
void gelu_backward(const Context& context, Tensor dx, Tensor dout, Tensor x);

// dropout.cu
void dropout(const Context& context, Tensor y, Tensor x, const DropoutOptions& options,
             Tensor residual);

// embedding.cu
void embedding_forward(const Context& context, Tensor out, Tensor ids, Tensor table,
                       bool accumulate, std::int64_t first_row);
void embedding_backward(const Context& context, Tensor dtable, Tensor ids, Tensor dout,
                        std::int64_t first_row);

// cross_entropy.cu
void cross_entropy(const Context& context, Tensor losses, Tensor logits, Tensor targets,
                   double gradient_scale);
void cross_entropy_partial(const Context& context, Tensor partial, Tensor logits, Tensor targets,
                           std::int64_t first_column);
void cross_entropy_merged(const Context& context, Tensor losses, Tensor logits, Tensor targets,
                          Tensor partials, std::int64_t first_column, double gradient_scale);

// reductions.cu
void sum(const Context& context, Tensor out, Tensor x);
void squared_norm(const Context& context, Tensor out, Tensor x);
void clip_scale(const Context& context, Tensor scale, Tensor squared_norm, double clip,
                double unscale);

// adamw.cu
void adamw(const Context& context, Tensor weight, Tensor master, Tensor moment1, Tensor moment2,
           Tensor gradient, Tensor gradient_scale, const AdamWOptions& options);

}  // namespace kintsugi::cuda
