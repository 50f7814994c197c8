"""The catalog: which device a name means, and what the user's own files do."""

import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from rooflight import devices
from rooflight.devices import catalog
from rooflight.hardware.devices.spec import Network

# names that drivers print; also without spaces as file names have them, and with dashes as Kubernetes labels do
PRINTED_NAMES = {
    "H100-SXM5-80GB": ["NVIDIA H100 80GB HBM3", "NVIDIA_H100_80GB_HBM3", "NVIDIA-H100-80GB-HBM3"],
    "H100-PCIe-80GB": ["NVIDIA H100 PCIe"],
    "H100-NVL-94GB": ["NVIDIA H100 NVL"],
    "H800-SXM5-80GB": ["NVIDIA H800"],
    "V100-DGXS-32GB": ["Tesla V100-DGXS-32GB"],
    "H200-SXM-141GB": ["NVIDIA H200"],
    "H200-NVL-141GB": ["NVIDIA H200 NVL"],
    "GH200-96GB": ["NVIDIA GH200 480GB", "NVIDIA GH200 120GB"],
    "GH200-144GB": ["NVIDIA GH200 144G HBM3e"],
    "A100-SXM4-40GB": ["NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"],
    "A100-SXM4-80GB": ["NVIDIA A100-SXM4-80GB", "A100-SXM-80GB", "NVIDIAA100-SXM4-80GB"],
    "A100-PCIe-40GB": ["NVIDIA A100-PCIE-40GB"],
    "A100-PCIe-80GB": ["NVIDIA A100 80GB PCIe"],
    "A10": ["NVIDIA A10"],
    "A10G": ["NVIDIA A10G"],
    "A30": ["NVIDIA A30"],
    "A40": ["NVIDIA A40"],
    "L4": ["NVIDIA L4"],
    "L40S": ["NVIDIA L40S"],
    "RTX 3090": ["NVIDIA GeForce RTX 3090", "GeForce RTX 3090"],
    "RTX 4090": ["NVIDIA GeForce RTX 4090"],
    "RTX 5090": ["NVIDIA GeForce RTX 5090"],
    "V100-SXM2-16GB": ["Tesla V100-SXM2-16GB"],
    "V100-SXM2-32GB": ["Tesla V100-SXM2-32GB"],
    "V100-PCIE-16GB": ["Tesla V100-PCIE-16GB"],
    "V100-PCIE-32GB": ["Tesla V100-PCIE-32GB"],
    "T4": ["Tesla T4"],
    "P4": ["Tesla P4"],
    "P100-PCIE-16GB": ["Tesla P100-PCIE-16GB"],
    "P100-SXM2-16GB": ["Tesla P100-SXM2-16GB"],
    "B100-SXM": ["NVIDIA B100"],
    "B200-SXM": ["NVIDIA B200"],
    "GB200 (per GPU)": ["NVIDIA GB200"],
    "B300-SXM": ["NVIDIA B300", "NVIDIA B300 SXM6 AC"],
    "GB300 (per GPU)": ["NVIDIA GB300"],
    "MI210": ["AMD Instinct MI210"],
    "MI250X (per GCD)": ["AMD Instinct MI250X"],
    "MI300X": ["AMD Instinct MI300X", "AMD Instinct MI300X OAM", "AMD Instinct MI300X VF"],
    "MI325X": ["AMD Instinct MI325X", "AMD Instinct MI325X OAM"],
    "MI350X": ["AMD Instinct MI350X"],
    "MI355X": ["AMD Instinct MI355X"],
    "Gaudi2": ["GAUDI2", "HL-225"],
    "Gaudi3": ["GAUDI3", "HL-325L"],
    "TPU v4": ["TPU v4"],
    "TPU v5e": ["TPU v5 lite", "TPU v5e"],
    "TPU v5p": ["TPU v5p"],
    "TPU v6e": ["TPU v6e", "TPU v6 lite"],
    "TPU v7": ["TPU7x"],
    "Trainium1": ["trainium1"],
    "Trainium2": ["trainium2"],
    "Trainium3": ["Trainium3"],
}

# Parts that resemble a known one and are not it: cut down, slower or faster memory, a slice, or several at once.
RESEMBLING = [
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
    "NVIDIA H100 80GB HBM2e",
    "NVIDIA H100 64GB HBM3",
    "NVIDIA GH200",
    "NVIDIA H20",
    "NVIDIA H800 PCIe",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA A100X",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA A10M",
    "NVIDIA A16",
    "NVIDIA A2",
    "NVIDIA L40",
    "NVIDIA L20",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 D",
    "NVIDIA GeForce RTX 5090 Laptop GPU",
    "Tesla V100-SXM2-32GB-LS",
    "Tesla V100-SXM3-32GB",
    "Tesla V100S-PCIE-32GB",
    "Tesla P100-PCIE-12GB",
    "Tesla P40",
    "NVIDIA T4G",
    "AMD Instinct MI250",
    "AMD Instinct MI250X/MI250",
    "AMD Instinct MI300A",
    "AMD Instinct MI308X",
    "AMD Radeon Graphics",
    "NVIDIA",
    "",
]


@pytest.fixture(autouse=True)
def no_files_of_the_user(monkeypatch):
    monkeypatch.delenv(catalog.FOLDER_VARIABLE, raising=False)


@pytest.mark.parametrize(("name", "printed"), [(name, each) for name, known in PRINTED_NAMES.items() for each in known])
def test_names_that_drivers_print_are_recognized(name, printed):
    found = devices.find_by_torch_name(printed)
    assert found.name == name
    assert devices.get(printed) is found


@pytest.mark.parametrize("text", RESEMBLING)
def test_resembling_parts_are_not_mistaken(text):
    assert devices.find_by_torch_name(text) is None
    with pytest.raises(ValueError, match=r"unknown device|may be"):
        devices.get(text)


def test_no_two_devices_answer_to_one_name():
    claims = [{catalog._squeezed(name) for name in (spec.name, *spec.match)} for spec in devices.all_devices()]
    for mine, others in combinations(claims, 2):
        assert not mine & others


def test_every_catalog_name_is_that_of_its_device():
    for name, spec in zip(devices.names(), devices.all_devices(), strict=True):
        assert devices.get(name) is devices.get(name.upper()) is devices.get(spec.name) is spec
        assert catalog._slug(spec.name) == name


def test_a_beginning_is_enough_where_it_is_unambiguous():
    assert devices.get("a100-sxm4-40GB").name == "A100-SXM4-40GB"
    assert devices.get("b200").name == "B200-SXM"
    assert devices.get("p100 sxm2").name == "P100-SXM2-16GB"
    assert devices.get("a10").name == "A10"  # not the A10G, nor the A100


def test_an_ambiguous_name_lists_what_it_may_mean():
    with pytest.raises(ValueError, match='"H100" may be h100-nvl-94gb, h100-pcie-80gb or h100-sxm5-80gb') as error:
        devices.get("H100")
    assert "\n" not in str(error.value)


def test_a_users_word_names_no_board_where_there_are_several() -> None:
    with pytest.raises(ValueError, match='"H200" may be h200-nvl-141gb or h200-sxm-141gb'):
        devices.get("H200")
    assert devices.get("NVIDIA H200").name == "H200-SXM-141GB"  # what its driver prints
    assert devices.find_by_torch_name("H200") == devices.get("NVIDIA H200")
    assert devices.get("B200").name == "B200-SXM"


def test_an_unknown_name_says_what_to_do_and_what_is_close():
    with pytest.raises(ValueError, match=r'unknown device "NVIDIA H300" \(close: .*h100.*\)') as error:
        devices.get("NVIDIA H300")
    assert str(error.value).endswith(
        "): rooflight devices lists those that are known; name one of them by --device or --on, or a TOML that "
        "describes yours"
    )
    with pytest.raises(ValueError, match='unknown device "abacus": rooflight devices lists those that are known'):
        devices.get("abacus")
    with pytest.raises(ValueError, match=r"\(close: v100-dgxs-16gb, v100-dgxs-32gb, v100-pcie-16gb, v100-pcie-32gb"):
        devices.get("Tesla V100-FHHL-16GB")  # not H100s, whose name is as close


MINIMAL = """
name = "Abacus"
vendor = "Acme"
source = ["its box"]
match = ["Acme Abacus 3000"]
[matrix_tflops]
float16 = 989.4
"""


def test_a_path_is_loaded(tmp_path):
    path = tmp_path / "abacus.toml"
    path.write_text(MINIMAL)
    spec = devices.get(str(path))
    assert (spec.name, spec.kind, spec.sources) == ("Abacus", "cuda", ("its box",))
    assert spec.matrix_peak("fp16") == 989.4e12
    assert spec.dram_bytes_per_s is None
    path.write_text(MINIMAL.replace("989.4", "1000.25"))
    assert devices.get(str(path)).matrix_peak("fp16") == 1000.25e12  # edited files are read again


def test_a_folder_of_the_user_joins_the_catalog(tmp_path, monkeypatch):
    (tmp_path / "My Abacus.toml").write_text(MINIMAL)
    monkeypatch.setenv(catalog.FOLDER_VARIABLE, str(tmp_path))
    assert "my-abacus" in devices.names()
    for name in ("my abacus", "ABACUS", "Acme Abacus 3000"):
        assert devices.get(name).vendor == "Acme"
    assert devices.get("Tesla T4").name == "T4"


def test_the_users_file_comes_before_a_shipped_one(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(MINIMAL.replace("Acme Abacus 3000", "Tesla T4"))
    (tmp_path / "l4.toml").write_text(MINIMAL.replace("Abacus", "L4"))
    monkeypatch.setenv(catalog.FOLDER_VARIABLE, str(tmp_path))
    assert devices.get("Tesla T4").vendor == "Acme"
    assert devices.get("L4").vendor == "Acme"
    assert len(devices.names()) == len(devices.all_devices()) == len(list(catalog._SHIPPED.glob("*.toml"))) + 1


def test_a_missing_folder_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv(catalog.FOLDER_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"ROOFLIGHT_DEVICES is .*nowhere.*: correct or unset it"):
        devices.names()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('name = "x', "Unterminated string"),
        ('name = "x"\nsource = []', "vendor"),
        (MINIMAL + "[memory]\nbandwidth = 3", r"bandwidth.*memory"),
        (MINIMAL + "[memory]\nbandwidth_gb_per_s = 0", r"memory\.bandwidth_gb_per_s"),
        (MINIMAL + '[memory]\ncapacity_gib = "80 GB"', r"memory\.capacity_gib"),
        (MINIMAL + "bf16 = 3", "bf16.*matrix_tflops"),
        (MINIMAL + "float8 = inf", r"matrix_tflops\.float8"),
        (MINIMAL + "float8 = nan", "."),
        (MINIMAL + "float8 = " + "9" * 400, r"matrix_tflops\.float8"),
        (MINIMAL + "[cache_mib]\nL2 = -1", "cache_mib"),
        (
            MINIMAL
            + '[memory]\nbandwidth_gb_per_s = 3000\n[reached]\nsource = ["a stream"]\nbandwidth_gb_per_s = 3001',
            r"reached\.bandwidth_gb_per_s is more than memory\.bandwidth_gb_per_s",
        ),
        (
            MINIMAL + '[reached]\nsource = ["torch.matmul"]\n[reached.matrix_tflops]\nfloat8 = 80',
            r"reached\.matrix_tflops\.float8 is more than its peak",
        ),
        (MINIMAL + "[reached]\nbandwidth_gb_per_s = 3", "source"),
        (MINIMAL + "[cache_gb_per_s]\nL2 = 9000", r"cache_gb_per_s\.L2 is of a cache that cache_mib does not list"),
        (
            MINIMAL + "[memory]\nbandwidth_gb_per_s = 3000\n[cache_mib]\nL2 = 9\n[cache_gb_per_s]\nL2 = 2000",
            r"cache_gb_per_s\.L2 is slower than main memory",
        ),
        (MINIMAL + '[[links]]\nname = "a"\ngb_per_s = 3', r"gb_per_s.*links"),
        ('kind = "gpu"' + MINIMAL, "kind"),
    ],
)
def test_an_invalid_file_is_refused_in_one_line_naming_file_and_key(tmp_path, content, fault):
    path = tmp_path / "broken.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"broken\.toml is not valid: .*{fault}") as error:
        devices.get(str(path))
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read device file .*none\.toml: No such file"):
        devices.get(str(tmp_path / "none.toml"))
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(ValueError, match=r"latin\.toml is not valid"):
        devices.get(str(tmp_path / "latin.toml"))


def test_finding_one_device_reads_its_family_only():
    program = (
        "from rooflight.devices import catalog, get; import sys; assert 'msgspec' not in sys.modules;"
        "get('NVIDIA H100 PCIe'); print(catalog._load_once.cache_info().currsize, 'torch' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert int(printed[0]) <= 3
    assert printed[1] == "False"


def test_the_example_in_the_documentation_is_valid(tmp_path):
    documentation = Path(__file__).parents[2] / "docs" / "reference" / "devices.md"
    example = documentation.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    path = tmp_path / "abacus-3000.toml"
    path.write_text(example)
    assert devices.get(str(path)).matrix_peak("bf16") == 400e12


def test_a_file_tells_of_links_and_of_the_network(tmp_path):
    path = tmp_path / "abacus.toml"
    links = '[[links]]\nname = "Rope"\nper_direction_gb_per_s = 400\njoins = 72\n'
    network = '[network]\nname = "InfiniBand NDR"\nper_direction_gb_per_s = 50\nadds = true\n'
    path.write_text(f"{MINIMAL}\n{links}\n{network}")
    spec = devices.get(str(path))
    assert spec.network == Network(name="InfiniBand NDR", bytes_per_s=50e9, adds=True)
    assert spec.interconnect.link_ranks == 72
    path.write_text(f'{MINIMAL}\n[network]\nname = "InfiniBand NDR"\n')
    with pytest.raises(ValueError, match="per_direction_gb_per_s"):
        devices.get(str(path))
