"""A directory of profiles: which there are, one by its name, and what differs between two.

The same on the host, behind the control socket, and on a laptop over a working copy. Names only: whoever may look at a
host's profiles through its socket must not be able to have it read any other file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine_host.nearest import suggestion
from engine_host.profiles.diff import diff_profiles
from engine_host.profiles.profile import Profile, expand_home, load_profile
from engine_host.protocol.errors import OperatorError
from engine_host.protocol.profiles import ProfileDetail, ProfileDiff, ProfileList, ProfileSummary


def find_profile(argument: str, profiles_dir: Path) -> Path:
    """The file that PROFILE means on a command line: a path if it looks like one, else a name in `profiles_dir`.

    Raises `OperatorError` with the nearest names there are.
    """
    if "/" in argument or argument.endswith(".toml"):
        path = Path(expand_home(argument))
        if path.exists() or path.parent != Path():
            return path  # a path that does not exist is told by `read_document`
        in_directory = profiles_dir / argument
        return in_directory if in_directory.exists() else path
    return ProfileDirectory(profiles_dir).file(argument)


class ProfileDirectory:
    def __init__(self, path: Path, also: Sequence[Path] = ()) -> None:
        """`also`: further files that count as being in the directory, such as the one a host was started with."""
        self.path = path
        self._also = tuple(also)

    def files(self) -> dict[str, Path]:
        """Name -> file, by name."""
        found = {file.stem: file for file in self._also}
        if self.path.is_dir():
            found |= {file.stem: file for file in self.path.glob("*.toml") if not file.name.startswith(".")}
        return dict(sorted(found.items()))

    def file(self, name: str) -> Path:
        files = self.files()
        if name in files:
            return files[name]
        if not files:
            raise OperatorError(
                f'no profile "{name}": there are no profiles in {self.path}',
                "give the path of a profile file, or --profiles-dir DIRECTORY",
            )
        raise OperatorError(f'no profile "{name}" in {self.path}', suggestion(name, files))

    def load(self, name: str) -> Profile:
        """Raises `OperatorError` for a name that is not there and for a file that is refused."""
        return load_profile(self.file(name))

    def list(self, running: Profile | None = None) -> ProfileList:
        """Every profile, the refused ones with the reason; `running` is what the host's engine was started with."""
        return ProfileList(
            directory=str(self.path), profiles=[_summary(name, path, running) for name, path in self.files().items()]
        )

    def detail(self, name: str) -> ProfileDetail:
        return detail_of(self.load(name))

    def diff(self, before: Profile | str, after: Profile | str) -> ProfileDiff:
        """Profiles, or names in this directory."""
        old, new = (self.load(one) if isinstance(one, str) else one for one in (before, after))
        return diff_profiles(old, new)


def detail_of(profile: Profile) -> ProfileDetail:
    """A profile for everybody's eyes."""
    return ProfileDetail(
        name=profile.name,
        path=str(profile.path),
        digest=profile.digest,
        lineage=[path.stem for path in profile.lineage],
        effective=profile.shown(),
    )


def _summary(name: str, path: Path, running: Profile | None) -> ProfileSummary:
    is_running = running is not None and running.path.resolve() == path.resolve()
    try:
        profile = load_profile(path)
    except OperatorError as error:
        return ProfileSummary(name=name, path=str(path), is_running=is_running, error=error.fact)
    has_changed = is_running and running is not None and running.digest != profile.digest
    return ProfileSummary(
        name=name,
        path=str(path),
        description=profile.description,
        digest=profile.digest,
        is_running=is_running,
        has_changed=has_changed,
    )
