"""On which file systems locks and renames hold for every process that can write."""

from __future__ import annotations

import os
import re

NETWORK = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4"),
    *("ocfs2", "orangefs", "prl_fs", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"),
}
LOCAL = {
    *("apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "jfs", "nilfs2", "overlay", "ramfs"),
    *("reiserfs", "tmpfs", "ufs", "xfs", "zfs"),
}


def type_of(path: str, mounts: str | None = None) -> str | None:
    """Return the type of the file system that holds *path*; None where the system does not tell (no /proc)."""
    if mounts is None:
        try:
            with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.read()
        except OSError:
            return None
    found, longest = None, -1
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)
        # Of two at one point, the later one covers the earlier.
        if len(point) >= longest and os.path.commonpath((point, path)) == point:
            found, longest = kind, len(point)
    return found


def is_shared(kind: str) -> bool:
    """Return whether other machines, or a program in between, may write there without meeting this kernel's locks."""
    return kind in NETWORK or kind == "fuse" or kind.startswith("fuse.")
