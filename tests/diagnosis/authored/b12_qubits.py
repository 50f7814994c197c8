"""Simulates a small circuit of qubits: layers of rotations, each with its own angle, and entangling phases."""
import torch

TRUTH = {
    "cause": "Each gate on one qubit is blown up to a dense matrix over the whole register by Kronecker products; it should be applied to its own axis of the state.",
    "lines": ["full = torch.kron(full, gate if q == qubit else eye)", "return full @ state", "state = self.apply(state, rotation(angle), qubit)"],
    "says": ["kron", "dense", "full matrix", "identity", "mostly (zero|nothing)|mostly-zeros|zeros", "matrix[- ]vector|matmul|\\bmv\\b", "register", "structured", "sparse"],
    "remedy": ["einsum|tensordot", "reshape|view|axis", "without (forming|building)", "2 ?x ?2", "apply .*(gate|axis|qubit)", "do not (form|build)", "sparse", "contract", "avoid .*kron"],
}


def rotation(angle):
    half = angle / 2
    return torch.stack([torch.stack([half.cos(), -half.sin()]), torch.stack([half.sin(), half.cos()])]).to(torch.complex64)


class Register:
    def __init__(self, qubits=9, layers=2):
        gen = torch.Generator().manual_seed(0)
        self.qubits = qubits
        self.angles = 3.0 * torch.rand(layers, qubits, generator=gen)
        index = torch.arange(2 ** qubits)
        bits = (index[:, None] >> torch.arange(qubits)) & 1
        pairs = (bits[:, :-1] & bits[:, 1:]).sum(1)
        self.phase = torch.exp(1j * 0.7 * pairs)
        self.signs = 1.0 - 2.0 * bits.float()

    def apply(self, state, gate, qubit):
        full, eye = torch.ones(1, 1, dtype=torch.complex64), torch.eye(2, dtype=torch.complex64)
        for q in range(self.qubits):
            full = torch.kron(full, gate if q == qubit else eye)
        return full @ state

    def run(self):
        state = torch.zeros(2 ** self.qubits, dtype=torch.complex64)
        state[0] = 1
        for layer in self.angles:
            for qubit, angle in enumerate(layer):
                state = self.apply(state, rotation(angle), qubit)
            state = state * self.phase
        return state.abs().square() @ self.signs


class AxisRegister(Register):
    def apply(self, state, gate, qubit):
        cube = state.view(2 ** qubit, 2, -1)
        return torch.einsum("ab,ibj->iaj", gate, cube).reshape(-1)


def make_step():
    return Register().run


def make_step_fixed():
    return AxisRegister().run
