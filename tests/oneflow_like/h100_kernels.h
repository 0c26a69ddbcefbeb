// The kernels over 20 us, in bf16, that calibration of an H100 timed: products, with and without epilogues,
// and attention, of models like GPT and Llama and of experts. Name, amounts of the work, seconds.
#pragma once

namespace oneflow_like {

inline constexpr char kH100Kernels[] = R"(
attention flop 5.47608e+10 byte 2.02899e+08 score 2.1391e+08 seconds 0.000152595
attention flop 1.36902e+10 byte 5.07249e+07 score 5.34774e+07 seconds 4.94931e-05
attention flop 2.73804e+10 byte 6.78953e+07 score 1.06955e+08 seconds 8.10926e-05
attention flop 6.8451e+09 byte 1.69738e+07 score 2.67387e+07 seconds 2.97024e-05
attention flop 3.42255e+09 byte 1.26812e+07 score 1.33693e+07 seconds 2.09801e-05
attention flop 1.82536e+10 byte 6.7371e+07 score 3.56516e+07 seconds 4.83276e-05
attention flop 3.65072e+10 byte 1.34742e+08 score 7.13032e+07 dropped 7.13032e+07 seconds 0.000299486
attention flop 2.73804e+10 byte 1.0145e+08 score 1.06955e+08 dropped 1.06955e+08 seconds 0.000291902
attention flop 1.39586e+11 byte 8.49347e+07 score 5.4526e+08 seconds 0.000320372
attention flop 2.01327e+09 byte 2.53624e+07 score 7.86432e+06 dropped 7.86432e+06 seconds 4.0482e-05
attention_grad flop 1.36902e+11 byte 4.04226e+08 score 2.1391e+08 seconds 0.000630896
attention_grad flop 3.42255e+10 byte 1.01057e+08 score 5.34774e+07 seconds 0.000181751
attention_grad flop 6.8451e+10 byte 1.35004e+08 score 1.06955e+08 seconds 0.000353653
attention_grad flop 1.71128e+10 byte 3.3751e+07 score 2.67387e+07 seconds 0.000122874
attention_grad flop 8.55638e+09 byte 2.52641e+07 score 1.33693e+07 seconds 6.96194e-05
attention_grad flop 4.5634e+10 byte 1.3448e+08 score 3.56516e+07 seconds 0.00018636
attention_grad flop 9.12681e+10 byte 2.6896e+08 score 7.13032e+07 dropped 7.13032e+07 seconds 0.000839215
attention_grad flop 6.8451e+10 byte 2.02113e+08 score 1.06955e+08 dropped 1.06955e+08 seconds 0.000774481
attention_grad flop 3.48966e+11 byte 1.68821e+08 score 5.4526e+08 seconds 0.00140245
attention_grad flop 5.03316e+09 byte 5.05283e+07 score 7.86432e+06 dropped 7.86432e+06 seconds 9.47906e-05
linear flop 3.86547e+10 byte 1.01844e+08 seconds 6.45259e-05
linear flop 3.86547e+10 byte 1.52176e+08 seconds 7.65704e-05
linear flop 1.54619e+11 byte 4.5771e+08 seconds 0.000298073
linear flop 1.54619e+11 byte 3.0671e+08 seconds 0.000204342
linear flop 3.86547e+10 byte 1.52175e+08 seconds 7.20949e-05
linear flop 9.66368e+09 byte 3.89299e+07 seconds 2.1017e-05
linear flop 3.86547e+10 byte 1.17971e+08 seconds 8.05554e-05
linear flop 3.86547e+10 byte 8.02176e+07 seconds 5.52027e-05
linear flop 9.66368e+09 byte 3.89284e+07 seconds 2.14433e-05
linear flop 1.93274e+10 byte 7.66771e+07 seconds 4.1335e-05
linear flop 8.37519e+10 byte 1.64495e+08 seconds 0.000121475
linear flop 8.37519e+10 byte 1.64495e+08 seconds 0.000116314
linear flop 6.44245e+09 byte 5.91135e+07 seconds 2.67322e-05
linear flop 1.93274e+10 byte 7.66771e+07 seconds 4.13824e-05
linear flop 2.0938e+10 byte 4.49577e+07 seconds 3.01731e-05
linear flop 2.0938e+10 byte 4.49577e+07 seconds 3.09797e-05
linear flop 1.71799e+10 byte 3.56536e+07 seconds 2.52825e-05
linear flop 1.71799e+10 byte 5.24308e+07 seconds 3.2806e-05
linear flop 6.87195e+10 byte 7.55016e+07 seconds 9.29215e-05
linear flop 2.74878e+11 byte 3.35561e+08 seconds 0.000397682
linear flop 6.87195e+10 byte 1.09052e+08 seconds 0.000101753
linear flop 1.93274e+10 byte 5.15128e+07 seconds 3.21636e-05
linear flop 7.73094e+10 byte 2.31217e+08 seconds 0.000151642
linear flop 6.87195e+10 byte 1.09052e+08 seconds 0.000101399
linear flop 2.74878e+11 byte 2.34881e+08 seconds 0.00034063
linear flop 2.74878e+11 byte 2.34881e+08 seconds 0.000349319
linear flop 1.71799e+10 byte 7.75946e+07 seconds 4.28769e-05
linear flop 6.87195e+10 byte 1.09052e+08 seconds 0.000103834
linear flop 9.66368e+09 byte 5.78058e+07 seconds 3.34858e-05
linear_grad_gelu flop 1.54619e+11 byte 4.57703e+08 seconds 0.000291914
linear_grad_gelu flop 3.86547e+10 byte 1.17965e+08 seconds 8.38378e-05
linear_grad_gelu flop 4.83184e+10 byte 3.08281e+08 seconds 0.000163506
linear_grad_gelu flop 1.20796e+10 byte 1.90317e+08 seconds 8.34136e-05
linear_grad_gelu flop 2.74878e+11 byte 3.35544e+08 seconds 0.000439713
linear_grad_gelu flop 7.73094e+10 byte 2.31211e+08 seconds 0.000150125
linear_grad_gelu flop 9.66368e+09 byte 5.78028e+07 seconds 4.60526e-05
linear_grad_weight flop 1.54619e+11 byte 2.61098e+08 seconds 0.000225284
linear_grad_weight flop 1.54619e+11 byte 2.61108e+08 seconds 0.000305008
linear_grad_weight flop 3.86547e+10 byte 1.03026e+08 seconds 9.35233e-05
linear_grad_weight flop 3.86547e+10 byte 1.03026e+08 seconds 8.95677e-05
linear_grad_weight flop 3.86547e+10 byte 7.23548e+07 seconds 6.4094e-05
linear_grad_weight flop 3.86547e+10 byte 7.2364e+07 seconds 7.64697e-05
linear_grad_weight flop 9.66368e+09 byte 2.75282e+07 seconds 2.74805e-05
linear_grad_weight flop 9.66368e+09 byte 2.75282e+07 seconds 2.91586e-05
linear_grad_weight flop 1.71799e+10 byte 3.77528e+07 seconds 3.51812e-05
linear_grad_weight flop 2.74878e+11 byte 2.34889e+08 seconds 0.000362925
linear_grad_weight flop 2.74878e+11 byte 2.34914e+08 seconds 0.00042921
linear_grad_weight flop 6.87195e+10 byte 8.38943e+07 seconds 0.000101042
linear_grad_weight flop 6.87195e+10 byte 8.38943e+07 seconds 0.000104816
linear_grad_weight flop 7.73094e+10 byte 1.35269e+08 seconds 0.000120201
linear_grad_weight flop 7.73094e+10 byte 1.35279e+08 seconds 0.000163087
linear_grad_weight flop 1.93274e+10 byte 5.2694e+07 seconds 5.2058e-05
linear_grad_weight flop 1.93274e+10 byte 5.2694e+07 seconds 4.95058e-05
linear_grad_weight flop 9.66368e+09 byte 3.61774e+07 seconds 3.2636e-05
linear_grad_weight flop 9.66368e+09 byte 3.6182e+07 seconds 3.66322e-05
linear_grad_weight flop 2.41592e+09 byte 1.37641e+07 seconds 2.20837e-05
linear_grad_weight flop 2.41592e+09 byte 1.37641e+07 seconds 2.24114e-05
product flop 1.28849e+10 left 5.03316e+07 right 393216 turned 393216 result 1.67772e+07 seconds 2.75344e-05
product flop 1.28849e+10 left 1.67772e+07 right 393216 result 5.03316e+07 seconds 3.08719e-05
product flop 1.28849e+10 left 1.67772e+07 right 5.03316e+07 result 786432 seconds 3.20323e-05
product flop 1.54619e+11 left 2.01327e+08 right 4.71859e+06 turned 4.71859e+06 result 5.03316e+07 seconds 0.000202146
product flop 3.86547e+10 left 5.03316e+07 right 1.17965e+06 turned 1.17965e+06 result 5.03316e+07 seconds 6.06999e-05
product flop 3.86547e+10 left 5.03316e+07 right 1.17965e+06 turned 1.17965e+06 result 5.03316e+07 seconds 5.95252e-05
product flop 3.86547e+10 left 5.03316e+07 right 4.71859e+06 turned 4.71859e+06 result 1.25829e+07 seconds 5.54724e-05
product flop 1.93274e+10 left 2.51658e+07 right 1.17965e+06 result 2.51658e+07 seconds 3.17341e-05
product flop 8.37519e+10 left 2.51658e+07 right 5.11181e+06 strided 5.11181e+06 result 1.09052e+08 seconds 0.000122913
product flop 8.05306e+11 left 2.51658e+07 right 4.9152e+07 turned 4.9152e+07 result 1.04858e+09 seconds 0.00125487
product flop 8.05306e+11 left 1.04858e+09 right 4.9152e+07 result 2.51658e+07 seconds 0.00113832
product flop 8.05306e+11 left 1.04858e+09 right 2.51658e+07 strided 1.04858e+09 result 9.8304e+07 seconds 0.00115904
product flop 8.37519e+10 left 2.51658e+07 right 5.11181e+06 turned 5.11181e+06 result 1.09052e+08 seconds 0.000137008
product flop 8.37519e+10 left 1.09052e+08 right 2.51658e+07 strided 1.09052e+08 result 1.02236e+07 seconds 0.000122447
product flop 8.37519e+10 left 2.51658e+07 right 1.09052e+08 strided 1.09052e+08 result 1.02236e+07 seconds 0.000128045
product flop 8.37519e+10 left 1.09052e+08 right 5.11181e+06 turned 5.11181e+06 result 2.51658e+07 seconds 0.000110136
product flop 1.93274e+10 left 2.51658e+07 right 1.17965e+06 turned 1.17965e+06 result 2.51658e+07 seconds 3.08357e-05
product flop 1.93274e+10 left 2.51658e+07 right 2.51658e+07 result 2.3593e+06 seconds 3.6438e-05
product flop 1.93274e+10 left 2.51658e+07 right 2.51658e+07 result 2.3593e+06 seconds 3.62013e-05
product flop 2.0938e+10 left 6.29146e+06 right 5.11181e+06 strided 5.11181e+06 result 2.7263e+07 seconds 3.62653e-05
product flop 2.01327e+11 left 6.29146e+06 right 4.9152e+07 turned 4.9152e+07 result 2.62144e+08 seconds 0.000299828
product flop 2.01327e+11 left 2.62144e+08 right 4.9152e+07 result 6.29146e+06 seconds 0.000259867
product flop 2.01327e+11 left 2.62144e+08 right 6.29146e+06 strided 2.62144e+08 result 9.8304e+07 seconds 0.000272395
product flop 2.0938e+10 left 6.29146e+06 right 5.11181e+06 turned 5.11181e+06 result 2.7263e+07 seconds 3.74218e-05
product flop 2.0938e+10 left 2.7263e+07 right 6.29146e+06 strided 2.7263e+07 result 1.02236e+07 seconds 2.8826e-05
product flop 2.0938e+10 left 6.29146e+06 right 2.7263e+07 strided 2.7263e+07 result 1.02236e+07 seconds 3.67232e-05
product flop 2.0938e+10 left 2.7263e+07 right 5.11181e+06 turned 5.11181e+06 result 6.29146e+06 seconds 2.9354e-05
product flop 4.83184e+10 left 3.14573e+07 right 1.50995e+08 result 6.29146e+07 seconds 9.64389e-05
product flop 4.83184e+10 left 6.29146e+07 right 1.50995e+08 result 3.14573e+07 seconds 9.63968e-05
product flop 4.83184e+10 left 6.29146e+07 right 3.14573e+07 result 3.0199e+08 seconds 0.00015022
product flop 4.83184e+10 left 6.29146e+07 right 1.50995e+08 turned 1.50995e+08 result 6.29146e+07 seconds 0.000104055
product flop 4.83184e+10 left 3.14573e+07 right 6.29146e+07 result 3.0199e+08 seconds 0.000159546
product flop 9.66368e+09 left 1.25829e+07 right 1.25829e+07 result 2.3593e+06 seconds 2.11512e-05
product flop 9.66368e+09 left 1.25829e+07 right 1.17965e+06 turned 1.17965e+06 result 2.51658e+07 seconds 2.03131e-05
product flop 1.20796e+10 left 7.86432e+06 right 1.50995e+08 result 1.57286e+07 seconds 6.44431e-05
product flop 1.20796e+10 left 1.57286e+07 right 1.50995e+08 result 7.86432e+06 seconds 6.45767e-05
product flop 1.20796e+10 left 1.57286e+07 right 7.86432e+06 result 3.0199e+08 seconds 0.000138374
product flop 1.20796e+10 left 1.57286e+07 right 1.50995e+08 turned 1.50995e+08 result 1.57286e+07 seconds 7.30077e-05
product flop 1.20796e+10 left 7.86432e+06 right 1.57286e+07 result 3.0199e+08 seconds 0.000129187
product flop 1.71799e+10 left 1.67772e+07 right 2.09715e+06 turned 2.09715e+06 result 1.67772e+07 seconds 2.73738e-05
product flop 1.71799e+10 left 1.67772e+07 right 1.67772e+07 result 4.1943e+06 seconds 2.74396e-05
product flop 1.71799e+10 left 1.67772e+07 right 2.09715e+06 turned 2.09715e+06 result 3.35544e+07 seconds 3.22297e-05
product flop 6.87195e+10 left 3.35544e+07 right 8.38861e+06 strided 8.38861e+06 result 3.35544e+07 seconds 8.95148e-05
product flop 2.74878e+11 left 1.34218e+08 right 3.35544e+07 strided 3.35544e+07 result 3.35544e+07 seconds 0.000338914
product flop 1.68792e+12 left 3.35544e+07 right 2.06045e+08 turned 2.06045e+08 result 8.24181e+08 seconds 0.00250351
product flop 1.68792e+12 left 8.24181e+08 right 2.06045e+08 strided 2.06045e+08 result 3.35544e+07 seconds 0.00234504
product flop 1.68792e+12 left 8.24181e+08 right 3.35544e+07 strided 8.57735e+08 result 4.1209e+08 seconds 0.00236368
product flop 2.74878e+11 left 1.34218e+08 right 3.35544e+07 turned 3.35544e+07 result 3.35544e+07 seconds 0.000349254
product flop 6.87195e+10 left 3.35544e+07 right 8.38861e+06 turned 8.38861e+06 result 3.35544e+07 seconds 9.40425e-05
product flop 6.87195e+10 left 3.35544e+07 right 8.38861e+06 turned 8.38861e+06 result 3.35544e+07 seconds 9.51921e-05
product flop 1.93274e+10 left 2.51658e+07 right 1.17965e+06 result 2.51658e+07 seconds 3.06798e-05
product flop 7.73094e+10 left 1.00663e+08 right 4.71859e+06 result 2.51658e+07 seconds 0.0001022
product flop 6.44245e+09 left 8.38861e+06 right 2.51658e+07 result 786432 seconds 2.04435e-05
product flop 7.73094e+10 left 1.00663e+08 right 4.71859e+06 turned 4.71859e+06 result 2.51658e+07 seconds 0.00010218
product flop 1.93274e+10 left 2.51658e+07 right 1.17965e+06 turned 1.17965e+06 result 2.51658e+07 seconds 3.28332e-05
product flop 6.87195e+10 left 3.35544e+07 right 8.38861e+06 strided 8.38861e+06 result 3.35544e+07 seconds 9.33944e-05
product flop 1.71799e+10 left 3.35544e+07 right 2.09715e+06 result 8.38861e+06 seconds 2.57962e-05
product flop 2.74878e+11 left 3.35544e+07 right 3.35544e+07 strided 3.35544e+07 result 1.34218e+08 seconds 0.000377228
product flop 1.07374e+12 left 3.35544e+07 right 1.31072e+08 turned 1.31072e+08 result 5.24288e+08 seconds 0.00166014
product flop 1.07374e+12 left 5.24288e+08 right 1.31072e+08 strided 1.31072e+08 result 3.35544e+07 seconds 0.00150123
product flop 1.07374e+12 left 5.24288e+08 right 3.35544e+07 strided 5.57842e+08 result 2.62144e+08 seconds 0.00155204
product flop 2.74878e+11 left 3.35544e+07 right 3.35544e+07 turned 3.35544e+07 result 1.34218e+08 seconds 0.000373105
product flop 2.74878e+11 left 1.34218e+08 right 3.35544e+07 strided 1.67772e+08 result 6.71089e+07 seconds 0.000346284
product flop 2.74878e+11 left 3.35544e+07 right 1.34218e+08 strided 1.67772e+08 result 6.71089e+07 seconds 0.000352753
product flop 2.74878e+11 left 1.34218e+08 right 3.35544e+07 turned 3.35544e+07 result 3.35544e+07 seconds 0.000347709
product flop 6.87195e+10 left 3.35544e+07 right 8.38861e+06 turned 8.38861e+06 result 3.35544e+07 seconds 9.3547e-05
product flop 6.87195e+10 left 3.35544e+07 right 3.35544e+07 strided 6.71089e+07 result 1.67772e+07 seconds 8.00135e-05
product flop 1.71799e+10 left 8.38861e+06 right 2.09715e+06 turned 2.09715e+06 result 3.35544e+07 seconds 3.12906e-05
product flop 1.71799e+10 left 3.35544e+07 right 8.38861e+06 strided 3.35544e+07 result 4.1943e+06 seconds 3.05074e-05
product flop 6.87195e+10 left 3.35544e+07 right 3.35544e+07 strided 6.71089e+07 result 1.67772e+07 seconds 8.71237e-05
)";

}  // namespace oneflow_like
