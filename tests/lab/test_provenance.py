from tersify.lab.experiments.provenance import cpu_name


def test_the_name_of_a_cpu_tells_the_generation_that_a_virtual_machine_hides(tmp_path):
    told = tmp_path / "cpuinfo"
    told.write_text(
        "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\n"
    )
    assert cpu_name(told) == "AMD EPYC (family 26, model 2)"


def test_a_cpu_without_a_family_has_its_name_alone(tmp_path):
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nmodel name\t: Neoverse-N1\n")
    assert cpu_name(told) == "Neoverse-N1"
