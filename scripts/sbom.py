"""Writes what toolgraft needs at run time, as it is installed here, as a CycloneDX SBOM: `sbom.py [FILE]`.

Names, versions, licenses and who needs whom; no paths. To stdout where no file is named.
"""

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from requirements import project, requirements


def bom() -> Bom:
    """The SBOM. Raises PackageNotFoundError where something that is needed is not installed."""
    about = project()
    root = Component(name=about["name"], version=about["version"], type=ComponentType.APPLICATION)
    root.licenses.add(LicenseFactory().make_from_string(about["license"]))
    made = Bom()
    made.metadata.component = root
    _Closure(made).add(root, map(Requirement, requirements("runtime")))
    return made


class _Closure:
    """What is needed, what that needs, and so on."""

    def __init__(self, made: Bom) -> None:
        self.bom = made
        self.components: dict[str, Component] = {}
        self.done: set[tuple[str, str]] = set()

    def add(self, by: Component, needed: Iterator[Requirement]) -> None:
        found = []
        for requirement in needed:
            name = canonicalize_name(requirement.name)
            installed = metadata.distribution(name)
            component = self.components.get(name) or self._component(name, installed)
            found.append(component)
            for extra in ("", *requirement.extras):
                if (name, extra) not in self.done:
                    self.done.add((name, extra))
                    self.add(component, _needs(installed, extra))
        self.bom.register_dependency(by, found)

    def _component(self, name: str, installed: metadata.Distribution) -> Component:
        component = Component(
            name=name,
            version=installed.version,
            type=ComponentType.LIBRARY,
            purl=PackageURL("pypi", name=name, version=installed.version),
            bom_ref=f"{name}=={installed.version}",
            licenses=_licenses(installed),
        )
        self.components[name] = component
        self.bom.components.add(component)
        return component


def _needs(installed: metadata.Distribution, extra: str) -> Iterator[Requirement]:
    for line in installed.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _licenses(installed: metadata.Distribution) -> Iterator[License]:
    """As the package declares it, unless that is a whole text."""
    about = installed.metadata
    declared = about.get("License-Expression") or about.get("License") or ""
    if declared and "\n" not in declared:
        yield LicenseFactory().make_from_string(declared)


def main(arguments: list[str]) -> None:
    text = JsonV1Dot6(bom()).output_as_string(indent=2) + "\n"
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
