"""Holds Python code that runs in workspaces: it does at once what takes a shell several programs.

The second reads from stdin what the first has written.
"""

PACK = """
import marshal, os, sys
entries = []
for folder, folders, files in os.walk("."):
    for name in folders:
        path = os.path.join(folder, name)
        entries.append((path, os.stat(path).st_mode & 0o777, 0, None))
    for name in files:
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            entries.append((path, found.st_mode & 0o777, found.st_mtime_ns, file.read()))
sys.stdout.buffer.write(marshal.dumps(entries))
sys.stdout.buffer.flush()
"""
"""Writes the whole folder, of which every folder comes before what is in it."""

UNPACK = """
import marshal, os, sys
for path, mode, changed, content in marshal.load(sys.stdin.buffer):
    if content is None:
        os.mkdir(path)
    else:
        with open(path, "wb") as file:
            file.write(content)
        os.utime(path, ns=(changed, changed))
    os.chmod(path, mode)
os.execvp("git", ["git", "update-index", "-q", "--refresh"])
"""
"""Ends as git, which puts the inodes of these files into the index in place of those where they were packed."""
