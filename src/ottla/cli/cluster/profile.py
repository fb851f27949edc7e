"""The profile of a cluster of this machine: `ottla cluster up` adds it, `ottla cluster down` removes it.

A profile belongs to the cluster if its bootstrap servers are brokers of the cluster. Another profile with the same name is kept, and
`up` says so. `down` removes the profile only if it has no other settings: settings of a user are not lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cli.common.profiles import text_of_file, with_profile, without_profile, write
from ottla.client import profiles

BOOTSTRAP = "bootstrap_servers"


def add_profile(name: str, brokers: Sequence[str]) -> str:
    """Adds or updates the profile of a cluster. Returns a line about what was done, or ""."""
    bootstrap = ",".join(brokers)
    try:
        found = profiles.read().by_name.get(name)
        if found is not None and not _belongs(found, brokers):
            return f"profile {name} exists already for another cluster; give this one a name with ottla profile add NAME {bootstrap}"
        settings = {} if found is None else dict(found.settings)
        if settings.get(BOOTSTRAP) == bootstrap:
            return ""
        write(with_profile(text_of_file(), name, {**settings, BOOTSTRAP: bootstrap}, {} if found is None else found.storage))
    except (OSError, ValueError) as error:
        return f"no profile was added to {profiles.config_path()}: {error}"
    return f"profile {name} {'added' if found is None else 'updated'}: use it with --profile {name}"


def remove_profile(name: str, brokers: Sequence[str]) -> str:
    """Removes the profile of a cluster if it is unchanged. Returns a line about what was done, or ""."""
    try:
        found = profiles.read().by_name.get(name)
        if found is None or not _belongs(found, brokers):
            return ""
        if set(found.settings) != {BOOTSTRAP} or found.storage:
            return f"profile {name} has other settings and was kept; remove it with ottla profile remove {name}"
        write(without_profile(text_of_file(), name))
    except (OSError, ValueError) as error:
        return f"profile {name} was not removed from {profiles.config_path()}: {error}"
    return f"profile {name} removed"


def _belongs(profile: profiles.Profile, brokers: Sequence[str]) -> bool:
    return set(profile.settings.get(BOOTSTRAP, "").split(",")) <= set(brokers)
