"""JupyterHub for one shared machine: COURSE_PASSWORD=... jupyterhub -f teaching/jupyterhub_config.py, as root.

Each learner is a user of the machine, has a copy of the notebooks, and shares this checkout and its environment.
"""

import os
import shutil
from pathlib import Path
from pwd import getpwnam

COURSE = Path(__file__).resolve().parents[1]
LEARNERS = 30


def copy_notebooks(spawner):
    """Copy what a learner finds at the first log-in. A folder that is there stays as it is: it has their work."""
    user = getpwnam(spawner.user.name)
    course = Path(user.pw_dir) / "course"
    if course.exists():
        return
    shutil.copytree(COURSE / "notebooks", course / "notebooks", ignore=shutil.ignore_patterns(".*", "solutions"))
    card = Path("roseinfer", "data", "tiny-gpt2")  # the first lesson links to it
    shutil.copytree(COURSE / card, course / card)
    for path in [course, *course.rglob("*")]:
        os.chown(path, user.pw_uid, user.pw_gid)


c = get_config()  # noqa: F821 (JupyterHub's)
c.JupyterHub.bind_url = "http://:8000"
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = os.environ["COURSE_PASSWORD"]
c.Authenticator.allowed_users = {f"learner{number:02}" for number in range(1, LEARNERS + 1)}
c.Spawner.cmd = [str(COURSE / ".venv" / "bin" / "jupyterhub-singleuser")]
c.Spawner.notebook_dir = "~/course"
c.Spawner.default_url = "/lab/tree/notebooks/00_start_here.ipynb"
c.Spawner.pre_spawn_hook = copy_notebooks
c.Spawner.start_timeout = 120  # thirty servers at once
c.Spawner.environment = {
    "OMP_NUM_THREADS": "1",  # thirty kernels share the cores: with a thread for each core, each waits for all others
    "JUPYTER_CONFIG_PATH": str(COURSE / ".jupyter"),  # as `make lab`: no popup, no request to the network
    "JUPYTER_PATH": str(COURSE / ".jupyter"),  # the extension that draws frames
}
# A lesson left open keeps its memory: its kernel ends after this many idle seconds, the notebook stays.
c.Spawner.args = [
    "--MappingKernelManager.cull_idle_timeout=2700",
    "--MappingKernelManager.cull_interval=120",
    "--MappingKernelManager.cull_connected=True",
]
