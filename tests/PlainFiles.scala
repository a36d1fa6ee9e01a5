// Hadoop's local file system, except that it sets permissions itself: Hadoop starts a `chmod` for every file and folder.
package dagster_ckpt.tests

import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.fs.{LocalFileSystem, Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission

class RawPlainFiles extends RawLocalFileSystem {
  override def setPermission(path: Path, wanted: FsPermission): Unit = {
    val text = wanted.getUserAction.SYMBOL + wanted.getGroupAction.SYMBOL + wanted.getOtherAction.SYMBOL
    Files.setPosixFilePermissions(pathToFile(path).toPath, PosixFilePermissions.fromString(text))
  }
}

class PlainFiles extends LocalFileSystem(new RawPlainFiles)
