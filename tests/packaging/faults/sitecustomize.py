"""Makes a pod fail as `FAULT` says: imported by Python at its start, where this folder is on the path."""

import os
import signal
import sys


def lose_storage_after(step):
    """Breaks the connection at the first step after the checkpoint of `step` is committed."""
    from t5core.trainer import Trainer

    train_step = Trainer.train_step

    def broken(self, state, batch):
        if int(state.step) == step:
            raise ConnectionResetError("the storage went away")
        return train_step(self, state, batch)

    Trainer.train_step = broken


class _Trap:
    """Acts when training is imported: a segment has the lock of its run by then, and has done nothing yet."""

    def find_spec(self, name, path=None, target=None):
        if name == "t5core.training":
            sys.meta_path.remove(self)
            fault, _, step = os.environ["FAULT"].partition(":")
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            lose_storage_after(int(step))


sys.meta_path.insert(0, _Trap())
