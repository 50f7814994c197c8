"""Shows what dispatcher, Dynamo, AOT autograd, Inductor and CUDA graphs make of a function, from what torch logs."""
