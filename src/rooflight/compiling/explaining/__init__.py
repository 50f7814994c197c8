"""What dispatcher, Dynamo, AOT autograd, Inductor and CUDA graphs make of a function, from torch's own records."""
