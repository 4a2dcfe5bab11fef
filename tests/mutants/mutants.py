"""The kept mutants: written by hand, each breaks one place. What any test of a function may notice is generated.

An exploration must notice them, or they break what guards framing and trust, or docs/field.md names them.
"""

from tests.mutants.mutants_of_field import FIELD
from tests.mutants.mutants_of_groups import GROUPS
from tests.mutants.mutants_of_handoff import HANDOFF
from tests.mutants.mutants_of_schedules import SCHEDULES
from tests.mutants.mutants_of_trust import TRUST

MUTANTS = (*SCHEDULES, *GROUPS, *HANDOFF, *TRUST, *FIELD)
