"""A file system that forgets what was not synced, for any program: FUSE over a directory, without a kernel module.

    python -m images.base.lossyfs mount BACKING MOUNTPOINT --control /run/lossyfs.control
    python -m images.base.lossyfs power-loss --keep torn --seed 7

Stands alone: this package (with `images` and `images.base` above it), Python 3.11, mfusepy and libfuse3. In a container
it needs CAP_SYS_ADMIN and /dev/fuse, nothing else.

Where data is kept
    The *backing directory* always holds what programs wrote, file by file, so that reads and writes cost little and a
    daemon that is killed loses nothing. The way back to the last fsync is kept apart, in the daemon's memory: of every
    write the bytes it replaced (an append replaces none), of every directory change the reverse (unlinked files wait
    in BACKING/.lossyfs). Only a power loss walks that way. Injected damage (`damage.py`) is a third thing, one value:
    `damage off` makes fsync, speed, errors and power losses harmless at once, and `damage on` brings them back.

Effect of a power loss
    Contents and names are lost independently of each other.
    Contents: of every file, writes and truncations since its last fsync are kept
        nothing      none of them;
        prefix       the first n, in the order they were made, n drawn for each file from the seed and its path;
        torn         as prefix, and the last write kept is cut somewhere in its middle: every other time what it
                     added to the file behind the cut is there as zeros, since file systems write down the length of a
                     file apart from its contents;
        everything   all.
    Names: create, mkdir, rename, unlink, rmdir and symlink stand in one journal, in order. `nothing` keeps no change
    that was not synced, `prefix` and `torn` keep the first n. A rename is one change: after a loss either the old or
    the new name is there, whole, and what it replaced if it was undone. A file whose creation is lost has vanished with
    all its contents, synced or not.
    A file whose name is durable and whose contents were never synced is there and empty.

Effect of fsync
    fsync and fdatasync of a file: its contents; and its name, if that is not durable yet, as ext4, XFS and btrfs do:
    the changes that gave it that name, with all that came before them in the directories concerned, and the names of
    the directories above it.
    fsync of a directory: all changes in it so far, their dependencies, and its own name and those above it.
    `--strict-names` is POSIX to the letter: fsync of a file says nothing about its name.
    A write through a handle opened with O_SYNC or O_DSYNC, in any mode, is followed by fsync: the kernel asks for it
    before the write returns, and `lie`, `slow` and `fail` act on it as on any other.
    sync(2) and syncfs(2) make nothing durable. They write back shared mappings and return success, but Linux passes
    them on to virtiofs and to FUSE on block devices alone (`fuse_sync_fs`), so this file system never learns of them.
    Programs that rely on them lose here what they would keep on a disk; fsync what is to survive.
    msync, and the writes of shared mappings, arrive as writes of whole pages. Nothing is ever written back by itself,
    but for the journal of names: when its unlinked files exceed 1 GiB or it has 50,000 changes, its oldest half becomes
    durable, as a full journal commits.
    `lie on` acknowledges every fsync and makes nothing durable; only an fsync after `lie off` does.

Limits
    Modes, owners and times are durable at once. Hard links, extended attributes, exchanging renames and O_TMPFILE are
    refused, as file systems without them do. Names beginning with .fuse_hidden are libfuse's own.
    Neighbouring changes of a file count as one beyond 65,536 appends in a row, 4,096 other changes or 16 MiB of
    replaced bytes, oldest first, which makes prefixes coarser and nothing safer.
    The daemon serves one operation at a time, like one disk: `slow` delays add up over threads. Reads that the kernel's
    page cache answers are neither slow nor failing. A sync that failed keeps nothing, and the next one keeps all.
    A file opened with O_APPEND or write-only is written past the page cache, which is what makes 64 KiB appends cheap;
    such a descriptor cannot be mapped shared (ENODEV), another descriptor of the same file can. `--cached` turns that
    off, and so do kernels before Linux 6.6. pwritev2 with RWF_SYNC or RWF_DSYNC is durable on handles in the page cache
    only, since the kernel drops the flag past it; O_SYNC and O_DSYNC handles always use the cache.
    A program that outlives a power loss gets EIO from files it had open, and SIGBUS from its mappings.
    The daemon's death leaves a mount that answers ENOTCONN, with all that was written in BACKING: `mounts` names it,
    `unmount` (or fusermount3 -u) clears it.

Commands reach the daemon as one line of JSON on its Unix socket (`control.py`); each is answered by one line.
"""
