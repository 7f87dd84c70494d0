"""Tasks that make vocabularies and datasets."""

from __future__ import annotations

from t5core.config.edges import (
    DatasetRef,
    ResolvedRun,
    RunInputs,
    ShareRequest,
    Survey,
    TaskRequest,
    TokenisedShare,
    VocabularyRef,
)
from tasks import failures, profiles


@profiles.data_task()
def build_vocabulary(run: ResolvedRun) -> VocabularyRef:
    """Trains the run's vocabulary, or takes the one that it names."""
    from t5core.stages import data

    with failures.retry_what_helps():
        return data.build_vocabulary(run)


@profiles.data_task()
def survey(request: TaskRequest) -> Survey:
    """Looks at one task: is its dataset there, what is in its text, and how is the work to be shared."""
    from t5core.stages import data

    with failures.retry_what_helps():
        return data.survey(request)


@profiles.light_task()
def share_out(surveys: list[Survey]) -> list[ShareRequest]:
    """Lists the shares to tokenise, one request each."""
    from t5core.stages import data

    with failures.retry_what_helps():
        return data.share_out(surveys)


@profiles.data_task()
def tokenise(request: ShareRequest) -> TokenisedShare:
    """Tokenises one share of a task."""
    from t5core.stages import data

    with failures.retry_what_helps():
        return data.tokenise(request)


@profiles.data_task()
def materialise(survey: Survey) -> DatasetRef:
    """Puts the shares of one task together into rows."""
    from t5core.stages import data

    with failures.retry_what_helps():
        return data.materialise(survey)


@profiles.data_task()
def assemble_mixture(run: ResolvedRun, vocabulary: VocabularyRef, tasks: list[DatasetRef]) -> DatasetRef:
    """Mixes, shuffles and packs the tasks' rows into the order in which they are trained on."""
    from t5core.stages import data

    with failures.retry_what_helps():
        return data.assemble_mixture(run, vocabulary, tasks)


@profiles.light_task()
def verify_vocabulary(
    run: ResolvedRun, vocabulary: VocabularyRef, tasks: list[DatasetRef], mixture: DatasetRef
) -> RunInputs:
    """Checks that vocabulary, data and model belong together."""
    from t5core.stages import data

    with failures.retry_what_helps():
        return data.verify_vocabulary(run, vocabulary, tasks, mixture)
