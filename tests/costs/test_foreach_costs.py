from builders import spec
from cost_table import costs


def parameters(first=0):
    return [spec((4, 6), storage=first), spec((5,), storage=first + 1)]


test_costs = costs(
    """
    # add sums its lists: 24 + 5; 4 * 29 each
    _foreach_add self=4x6@0 self=5@1 other=4x6@10 other=5@11 -> 4x6@20 5@21 = vector 29, read 232, written 116
    # in place reads and writes
    _foreach_mul_ self=4x6@0 self=5@1 -> 4x6@0 5@1 = read 116, written 116, vector 29
    # equal tensors that share nothing both count
    _foreach_sqrt self=3 self=3 -> 3 3 = read 24, vector 6
    # addcdiv and lerp are three
    _foreach_addcdiv_ self=4x6@0 self=5@1 tensor1=4x6@10 tensor1=5@11 tensor2=4x6@20 tensor2=5@21 -> 4x6@0 5@1 = vector
        87, read 348, written 116
    _foreach_lerp_ self=4x6@0 self=5@1 tensors1=4x6@10 tensors1=5@11 -> 4x6@0 5@1 = vector 87
    # copy and zero only write
    _foreach_copy_ self=4x6@0 self=5@1 src=4x6@10 src=5@11 -> 4x6@0 5@1 = read 116, written 116, vector 0
    _foreach_zero_ self=4x6@0 self=5@1 -> 4x6@0 5@1 = read 0, written 116
    # norm reads all and writes one number each
    _foreach_norm self=4x6@0 self=5@1 -> () () = vector 58, read 116, written 8
    # unscaling gradients
    _amp_foreach_non_finite_check_and_unscale_ self=4x6@0 self=5@1 found_inf=1@9 inv_scale=1 -> 4x6@0 5@1 1@9 = vector
        58, read 120, written 120
    """
)
