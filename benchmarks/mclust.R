# Fits with mclust's prior. Each line of standard input names a folder with data.csv, and is answered by a line when
# result.csv is there: seconds, weights, means and covariances, component by component.
suppressMessages(library(mclust))
lines <- file("stdin", "r")
while (length(request <- readLines(lines, 1)) > 0) {
  part <- strsplit(request, "\t")[[1]]  # folder, number of components, model, number of columns, seed
  x <- matrix(scan(file.path(part[1], "data.csv"), sep = ",", quiet = TRUE), ncol = as.integer(part[4]), byrow = TRUE)
  set.seed(as.integer(part[5]))
  model <- NULL
  seconds <- system.time(try(
    model <- Mclust(x, G = as.integer(part[2]), modelNames = part[3], prior = priorControl(), verbose = FALSE),
    silent = TRUE
  ))["elapsed"]
  values <- numeric(0)
  if (!is.null(model)) {
    p <- model$parameters
    covariances <- if (ncol(x) > 1) p$variance$sigma else rep_len(p$variance$sigmasq, as.integer(part[2]))
    values <- c(seconds, p$pro, p$mean, covariances)
  }
  write(formatC(values, digits = 17, format = "g"), file.path(part[1], "result.csv"), ncolumns = 1)
  cat("done\n")
}
